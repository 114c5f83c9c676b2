"""sweep.json: what a sweep directory holds, and whether a new command may go on in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relatum.config import RunConfig
from relatum.config_files import differences, flatten, from_dict, to_dict
from relatum.errors import CheckpointError, ConfigError
from relatum.sweep.grid import Point
from relatum.sweep.plan import Base, Job
from relatum.sweep.state import FREE

FILE = "sweep.json"
_LOCK = ".lock"
# Seconds that the runs of a sweep that was killed have to save and end, before a new one gives up waiting for them.
_PATIENCE = 120.0
_PAUSE = 0.1
# May change between two commands: these do not change what has been trained.
_FREE = (*FREE, "train.seed", "train.max_steps")


@dataclass(frozen=True)
class Entry:
    """One run of a sweep: its place in the grid, and its seed."""

    point: Point
    seed: int
    needs: str | None = None

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return f"{self.point.name}-s{self.seed}"


@dataclass(frozen=True)
class Sweep:
    """What sweep.json says.

    Args:
        folder: the sweep directory.
        recipe: as on the command line.
        base: settings of the recipe with the overrides.
        overrides: those overrides as words.
        command: the last command that ran here.
        entries: all runs, those of earlier commands too.
    """

    folder: Path
    recipe: str
    base: RunConfig
    overrides: tuple[str, ...]
    command: str
    entries: tuple[Entry, ...] = field(default=())

    @property
    def keys(self) -> list[str]:
        """The swept settings, in the order of the commands."""
        return list(dict.fromkeys(key for entry in self.entries for key in entry.point.values))

    def values(self, point: Point) -> dict[str, Any]:
        """Return what a point has for every swept setting: one that it does not sweep is that of the recipe."""
        base = flatten(to_dict(self.base))
        return {key: point.values.get(key, base[key]) for key in self.keys}

    def write(self) -> None:
        """Write sweep.json."""
        grid: dict[str, list[Any]] = {}
        for entry in self.entries:
            for key, value in entry.point.values.items():
                grid.setdefault(key, [])
                grid[key] += [] if value in grid[key] else [value]
        content = {
            "recipe": self.recipe,
            "grid": grid,
            "seeds": sorted({entry.seed for entry in self.entries}),
            "overrides": list(self.overrides),
            "command": self.command,
            "runs": [{"values": dict(e.point.values), "seed": e.seed, "needs": e.needs} for e in self.entries],
            "base": to_dict(self.base),
        }
        write_text(self.folder / FILE, json.dumps(content, indent=1) + "\n")


def read_sweep(folder: Path) -> Sweep:
    """Read the sweep.json of a directory."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(Entry(Point(run["values"]), int(run["seed"]), run.get("needs")) for run in content["runs"])
        base = from_dict(content["base"], str(path))
        return Sweep(folder, content["recipe"], base, tuple(content["overrides"]), content["command"], entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); give another --out.") from error


def joined(base: Base, jobs: Sequence[Job], command: str) -> Sweep:
    """Return the sweep of this command, with the runs that earlier commands left in its directory.

    Raises:
        ConfigError: the directory holds a sweep of another recipe, or with other settings for all points.
    """
    new = [Entry(job.point, job.seed, job.needs) for job in jobs if job.point is not None]
    old: list[Entry] = []
    if (base.folder / FILE).exists():
        before = read_sweep(base.folder)
        _require_same(before, base)
        names = {entry.name for entry in new}
        # What was asked for once, and never begun, is not asked for any more.
        old = [e for e in before.entries if e.name not in names and (base.folder / e.name).is_dir()]
    return Sweep(base.folder, base.recipe, base.config, base.overrides, command, (*old, *new))


def _require_same(before: Sweep, base: Base) -> None:
    cure = "Give another --out, or delete that directory to start anew."
    if before.recipe != base.recipe:
        raise ConfigError(f"{base.folder} holds a sweep of {before.recipe}, not of {base.recipe}. {cure}")
    old, new = (json.loads(json.dumps(to_dict(config))) for config in (before.base, base.config))
    changed = {key: pair for key, pair in differences(old, new).items() if key not in _FREE}
    if changed:
        words = "; ".join(f"{key} was {was!r}, now {now!r}" for key, (was, now) in changed.items())
        raise ConfigError(f"{base.folder} holds a sweep with other settings ({words}). {cure}")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}. Choose another --out.") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Keep a second sweep out of a directory.

    The runs inherit the lock, so it outlives a sweep that was killed. They follow it soon, once they have saved; until
    then this waits.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {error.strerror}. Choose another --out.") from error
    try:
        if not _take(file):
            raise ConfigError(
                f"another sweep, or a run that it left behind, is at work in {folder}; wait for it or stop it."
            )
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield file
    finally:
        os.close(file)


def _take(file: int) -> bool:
    """Lock the file. Where its sweep is dead and only the runs of it hold the lock, wait for them."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            owner = os.pread(file, 32, 0)
            if not owner.isdigit() or _alive(int(owner)) or time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, but there
        pass
    return True
