"""How far a run is, as its directory tells; nothing is started to find out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from relatum.config_files import differences, to_dict
from relatum.sweep.plan import Job

Status = Literal["finished", "failed", "interrupted", "waiting"]
# Settings that do not change a result. A run with another train.max_steps is not the same: it may have to go on.
FREE = ("out", "train.device", "train.threads", "train.tensorboard", "data.workers")


def is_finished(job: Job) -> bool:
    """Whether the run has ended with these settings, so that no process needs to be started.

    A run with other settings is left to `relatum train`, which continues it or says what differs.
    """
    if not has_ended(job.result):
        return False
    if job.point is None:
        return _left_encoder(job)
    before = read_object(job.path / "config.json")
    now = json.loads(json.dumps(to_dict(job.config)))
    return before is not None and not set(differences(before, now)) - set(FREE)


def _left_encoder(job: Job) -> bool:
    """Whether a first stage is complete. Its name stands for its settings, but for where it was told to stop."""
    from relatum.recipes.pretraining import ENCODER_FILE

    try:
        before = tomllib.loads((job.result / "config.toml").read_text(encoding="utf-8"))
        goal = before.get("train", {}).get("max_steps")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
    return (job.result / ENCODER_FILE).is_file() and goal == job.config.train.max_steps


def has_ended(path: Path) -> bool:
    """Whether a run directory holds a finished run with its scores."""
    manifest = read_object(path / "manifest.json") or {}
    return manifest.get("status") == "finished" and read_object(path / "scores.json") is not None


def status_of(path: Path, failed: bool = False) -> Status:
    """Return the state of a run directory; `failed` is what is known of its last start."""
    if has_ended(path):
        return "finished"
    if failed:
        return "failed"
    manifest = read_object(path / "manifest.json")
    return "waiting" if manifest is None else "interrupted"


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if it is not there or cannot be read: the run will write it again."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
