"""Checkpoints: one safetensors file each, written whole or not at all, with a hash, two kept.

A file holds every tensor of a state under a prefixed name, and everything that is not a tensor as JSON in its
header. Nothing in it can run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from relatum.errors import CheckpointError

KEEP = 2
INDEX = "index.json"


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
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"cannot write {path}: {error.strerror}. Check space and permissions.") from error


def save_checkpoint(folder: Path, state: State, step: int) -> Path:
    """Write `state` as the newest checkpoint of `folder` and remove all but the last two."""
    data = save(state.tensors, metadata={"relatum": json.dumps(state.values)})
    path = folder / f"step-{step:09d}.safetensors"
    write_atomically(path, data)
    entries = [e for e in _read_index(folder) if e["file"] != path.name and e["step"] < step]
    entries.append({"file": path.name, "step": step, "sha256": hashlib.sha256(data).hexdigest()})
    kept = entries[-KEEP:]
    write_atomically(folder / INDEX, json.dumps(kept, indent=1).encode())
    names = {entry["file"] for entry in kept}
    # A killed process may have left a temporary file besides the checkpoints that are no longer kept.
    for old in (*folder.glob("step-*.safetensors"), *folder.glob(".*.tmp")):
        if old.name not in names:
            old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> State:
    """Read one checkpoint file; a CheckpointError says why it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})["relatum"])
            return State({name: file.get_tensor(name) for name in file.keys()}, values)  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}.") from error
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable relatum checkpoint ({error}).") from error


def latest_checkpoint(folder: Path) -> tuple[State | None, list[str]]:
    """Return the newest checkpoint that is whole, and sentences about those that had to be passed over."""
    problems: list[str] = []
    for entry in reversed(_read_index(folder)):
        path = folder / entry["file"]
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
                raise CheckpointError(f"{path} is damaged: its hash is not the recorded one.")
            return load_checkpoint(path), problems
        except (CheckpointError, OSError) as error:
            problems.append(f"{error} Falling back to the checkpoint before it.")
    return None, problems


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state apart into tensors by name and JSON values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entry in state["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values[f"{index}.{name}"] = value
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    return tensors, {"state": values, "groups": groups}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], values: Any) -> None:
    """Put back what `flatten_optimizer` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **values["state"]}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    fresh = optimizer.state_dict()["param_groups"]
    if len(fresh) != len(values["groups"]):
        raise CheckpointError("the checkpoint has other parameter groups than this run; start a new run directory.")
    groups = [{**saved, "params": now["params"]} for saved, now in zip(values["groups"], fresh, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _read_index(folder: Path) -> list[dict[str, Any]]:
    path = folder / INDEX
    if not path.exists():
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text())
        return [{key: entry[key] for key in ("file", "step", "sha256")} for entry in entries]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); delete it and the checkpoints to start anew."
        ) from error
