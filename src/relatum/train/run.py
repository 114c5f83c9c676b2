"""What a run comes to: the answer of `fit`, and how many steps there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relatum.config import TrainConfig
from relatum.processes import from_first
from relatum.train.record import RunDirectory
from relatum.train.task import Measured, Task


@dataclass
class Run:
    """What `fit` gives back.

    Args:
        scores: what the task measured after the last epoch, by split (`Scores` of a classifier); empty if the run was
            interrupted.
        status: "finished" or "interrupted".
        steps: optimizer steps done in total.
        seconds: seconds spent in total, over all starts of the run.
        path: the run directory, or None.
    """

    scores: dict[str, Any]
    status: str
    steps: int
    seconds: float
    path: Path | None


def steps_per_epoch(batches: int, config: TrainConfig) -> int:
    """Optimizer steps in an epoch of `batches` micro-batches; the last step may accumulate fewer."""
    return math.ceil(batches / config.accumulate)


def finished_run(task: Task, directory: RunDirectory | None, batches: int, config: TrainConfig) -> Run | None:
    """Return the run in `directory` if it has ended, and not only at a `max_steps` that has been raised since.

    Of several processes the first has the directory, and all of them get its answer.
    """
    return from_first(None if directory is None else _finished(task, directory, batches, config))


def _finished(task: Task, directory: RunDirectory, batches: int, config: TrainConfig) -> Run | None:
    goal = config.epochs * steps_per_epoch(batches, config)
    goal = min(goal, config.max_steps or goal)
    done = directory.manifest
    if done.get("status") != "finished" or done["steps"] < goal:
        return None
    scores: dict[str, Measured] = {s: task.read_scores(entry) for s, entry in directory.read_scores().items()}
    return Run(scores, "finished", done["steps"], done["seconds"], directory.path)
