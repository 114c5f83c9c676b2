"""Checkpoints: one safetensors file each, written whole or not at all, with a hash, two kept.

A file holds every tensor of a state under a prefixed name, and everything that is not a tensor as JSON in its
header, together with its own hash (see `seal`). Nothing in it can run code. What counts is the files: index.json lists
them for people and for tools, and vouches for those of earlier versions, which have no hash of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from relatum.errors import CheckpointError
from relatum.files import sweep_up, write_atomically
from relatum.train.seal import SEAL, UNSEALED, VALUES, check_seal, damaged, file_hash, is_whole, remember, seal

KEEP = 2
INDEX = "index.json"
_NAME = re.compile(r"step-(\d{9,})\.safetensors")


@dataclass
class State:
    """What a checkpoint holds: tensors by name, and plain JSON values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        """Add `tensors` under `prefix`."""
        self.tensors |= {f"{prefix}.{name}": t.detach().cpu().contiguous().clone() for name, t in tensors.items()}

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors that were added under `prefix`."""
        start = prefix + "."
        return {name[len(start) :]: t for name, t in self.tensors.items() if name.startswith(start)}


def save_checkpoint(folder: Path, state: State, step: int) -> Path:
    """Write `state` as the newest checkpoint of `folder` and remove all but the last two that are whole.

    A damaged file stays until a whole one of its step or a later one has been written. A whole one of a later step
    belongs to a history that is being written anew, and goes.
    """
    sweep_up(folder)
    data = seal(save(state.tensors, metadata={VALUES: json.dumps(state.values), SEAL: UNSEALED}))
    path = folder / f"step-{step:09d}.safetensors"
    write_atomically(path, data)
    remember(path)
    recorded = {**_read_index(folder)[0], path.name: hashlib.sha256(data).hexdigest()}
    files = _files(folder)
    whole = [file for file in files if is_whole(file, recorded.get(file.name))]
    kept = [file for file in whole if _step(file) <= step][-KEEP:]
    _write_index(folder, kept, recorded)
    for old in files:
        if old not in kept and (old in whole or _step(old) < step):
            _remove(old)
    return path


def load_checkpoint(path: Path) -> State:
    """Read one checkpoint file; a CheckpointError says why it cannot be read, or that it is damaged."""
    check_seal(path)
    return _read(path)


def _read(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})[VALUES])
            if not isinstance(values, dict):
                raise ValueError("its values are no table")
            return State({name: file.get_tensor(name) for name in file.keys()}, values)  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable relatum checkpoint ({error}).") from error


def latest_checkpoint(folder: Path) -> tuple[State | None, list[str]]:
    """Return the newest checkpoint that is whole, and sentences about what had to be passed over; None without any.

    Raises:
        CheckpointError: there are checkpoints, but none of them is whole.
    """
    recorded, problems = _read_index(folder)
    names = {path.name for path in _files(folder)} | recorded.keys()
    reasons: list[str] = []
    for path in sorted((folder / name for name in names), key=_step, reverse=True):
        try:
            state, doubts = _load_whole(path, recorded.get(path.name))
            passed_over = [f"{words} Falling back to the checkpoint before it." for words in reasons]
            return state, [*problems, *passed_over, *doubts]
        except CheckpointError as error:
            reasons.append(str(error))
    if not reasons and not problems:
        return None, []
    raise CheckpointError(
        f"{' '.join([*problems, *reasons])} No checkpoint is left to continue from, and all files stay as they are. "
        f"Bring one back from a copy, or delete {folder.parent} to start anew."
    )


def has_checkpoints(folder: Path) -> bool:
    """True if something was kept in `folder`, in whatever state it is now."""
    return (folder / INDEX).exists() or bool(_files(folder))


def newest_step(folder: Path) -> int:
    """Step of the newest checkpoint that is whole; 0 without any."""
    recorded, _ = _read_index(folder)
    return next((_step(path) for path in reversed(_files(folder)) if is_whole(path, recorded.get(path.name))), 0)


def _load_whole(path: Path, recorded: str | None) -> tuple[State, list[str]]:
    doubts = []
    if not check_seal(path):
        if recorded is None:
            doubts = [f"{path} is of an earlier version, without a hash, and could not be checked for damage."]
        elif file_hash(path) != recorded:
            raise damaged(path)
    return _read(path), doubts


def _files(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, oldest first."""
    found = (path for path in folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name) and path.is_file())
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot remove {path}: {error.strerror}. Check permissions.") from error


def _write_index(folder: Path, kept: list[Path], recorded: Mapping[str, str]) -> None:
    entries = [
        {"file": path.name, "step": _step(path), "sha256": recorded.get(path.name) or file_hash(path)} for path in kept
    ]
    write_atomically(folder / INDEX, json.dumps(entries, indent=1).encode())


def _read_index(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the hashes that index.json has recorded, by file, and a sentence if it is lost."""
    path = folder / INDEX
    try:
        entries = {str(entry["file"]): str(entry["sha256"]) for entry in json.loads(path.read_text())}
        return {name: digest for name, digest in entries.items() if _NAME.fullmatch(name)}, []
    except FileNotFoundError:
        words = f"{path} is missing;" if _files(folder) else ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        words = f"{path} cannot be read ({error});"
    return {}, [f"{words} the checkpoints were judged by their own hashes."] if words else []
