"""Files written so that no crash, full disk or power cut leaves a part of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from relatum.errors import CheckpointError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"cannot write {path}: {error.strerror}. Check space and permissions.") from error


def write_if_new(path: Path, data: bytes) -> None:
    """Write a file that does not hold these bytes already: on a full disk nothing that stays the same is in the way."""
    try:
        same = path.read_bytes() == data
    except OSError:
        same = False
    if not same:
        write_atomically(path, data)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and wait until it is on disk; one that does not fit is taken back."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        size, data = os.fstat(handle).st_size, (line + "\n").encode()
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
    if not size:
        _sync_folder(path.parent)


def sweep_up(folder: Path) -> None:
    """Remove temporary files that a killed process has left, which may be what fills the disk."""
    for left in folder.glob(".*.*.tmp"):
        with contextlib.suppress(OSError):
            left.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
