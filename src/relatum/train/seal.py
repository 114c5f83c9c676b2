"""The hash that a checkpoint carries in its own header, so that a file can be judged without anything beside it.

It is the SHA-256 of the whole file with sixty-four zeros where the hash itself stands: no byte of the file is outside
of it, neither of the tensors nor of the header.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO, Any

from relatum.errors import CheckpointError

VALUES, SEAL = "relatum", "sha256"
UNSEALED = "0" * 64
_LARGEST_HEADER = 100_000_000  # as in safetensors; a length beyond it is a damaged one
_CHUNK = 1 << 20
# Files that this process has written or checked, with size and times as they were: they need no second look.
_known: dict[Path, tuple[int, ...]] = {}


def seal(data: bytes) -> bytes:
    """Return a safetensors file whose metadata `sha256` is UNSEALED with the hash of the file in its place."""
    end = 8 + int.from_bytes(data[:8], "little")
    place = _place(data[:end], UNSEALED)
    return b"".join((data[:place], hashlib.sha256(data).hexdigest().encode(), data[place + len(UNSEALED) :]))


def check_seal(path: Path) -> bool:
    """Compare a checkpoint with the hash in its header; False if it is of an earlier version and has none.

    Raises:
        CheckpointError: it is damaged, or no checkpoint at all.
    """
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
            raise ValueError("it is no file")
        with path.open("rb") as file:
            return _check(path, file)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable relatum checkpoint ({_reason(error)}).") from error


def file_hash(path: Path) -> str:
    """SHA-256 of a file as it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(path: Path, recorded: str | None) -> bool:
    """True if the file has the hash of its header or, being of an earlier version, the `recorded` one."""
    try:
        if _known.get(path) == _signature(path):
            return True
        whole = check_seal(path) or (recorded is not None and file_hash(path) == recorded)
        if whole:
            remember(path)
        return whole
    except (CheckpointError, OSError):
        return False


def remember(path: Path) -> None:
    """Take note that a file is whole as it is now."""
    _known[path] = _signature(path)


def damaged(path: Path) -> CheckpointError:
    """The error for a file that is not what was written."""
    return CheckpointError(f"{path} is damaged: its hash is not the recorded one.")


def _check(path: Path, file: IO[bytes]) -> bool:
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > _LARGEST_HEADER:
        raise ValueError("it has no header")
    header = file.read(size)
    metadata: dict[str, Any] = json.loads(header)["__metadata__"]
    metadata[VALUES]  # anything else is not ours
    if metadata.keys() == {VALUES}:
        return False
    written = str(metadata[SEAL])
    place = _place(header, written)
    if place < 0 or len(written) != len(UNSEALED):
        raise damaged(path)
    digest = hashlib.sha256(length + header[:place] + UNSEALED.encode() + header[place + len(UNSEALED) :])
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != written:
        raise damaged(path)
    return True


def _place(header: bytes, written: str) -> int:
    """Where the hash stands, or -1. Quotes inside of JSON strings are escaped, so that there is one such place only."""
    start = f'"{SEAL}":"'.encode()
    found = header.find(start + written.encode() + b'"')
    return found if found < 0 else found + len(start)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it has no entry {error}" if isinstance(error, KeyError) else str(error)


def _signature(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
