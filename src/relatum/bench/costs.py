"""What a run spends beside its steps: evaluations, checkpoints, and the start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from relatum.bench.measure import seconds_per_call
from relatum.bench.subjects import Subject
from relatum.config_files import to_toml
from relatum.data.loaders import Loaders
from relatum.errors import TrainingError
from relatum.recipes.pretraining import FOLDER
from relatum.train import RunDirectory, Task
from relatum.train.checkpoint import INDEX

_POLL = 0.02
_PATIENCE = 600.0


@dataclass(frozen=True)
class Beside:
    """Seconds beside the steps, in a run as long as its recipe says.

    Args:
        evaluation: seconds of one evaluation during training; 0 if there is no split to evaluate.
        evaluations: how many of them.
        last: seconds of the evaluation at the end, of all splits and with its confidence intervals.
        checkpoint: seconds of one checkpoint.
        checkpoints: how many of them.
        training: seconds of all steps, at the speed measured.
    """

    evaluation: float
    evaluations: int
    last: float
    checkpoint: float
    checkpoints: int
    training: float

    @property
    def share(self) -> float:
        """Of the whole run."""
        beside = self.evaluation * self.evaluations + self.last + self.checkpoint * self.checkpoints
        return beside / (beside + self.training)


def beside_steps(
    subject: Subject, task: Task, loaders: Loaders, folder: Path, images_per_second: float, rounds: int
) -> Beside:
    """Measure an evaluation and a checkpoint, and hold them against the steps of a run.

    Args:
        subject: whose epochs, eval_every and save_every count.
        task: its task.
        loaders: its loaders.
        folder: where checkpoints may be written.
        images_per_second: speed of the steps.
        rounds: checkpoints to write; evaluations are measured once.
    """
    train = subject.train
    with RunDirectory(folder, {}) as directory:
        loop = subject.trainer(task, loaders, directory)
        loop._step([next(loaders.train.epoch(0)) for _ in range(train.accumulate)])  # the optimizer has its state now
        checkpoint = seconds_per_call(loop._save, rounds)
        split = "val" if "val" in loaders.evals else next(iter(loaders.evals), None)
        evaluation = 0.0 if split is None else seconds_per_call(lambda: loop._evaluate(split, bootstrap=0), 1)
        bootstrap = subject.config.evaluate.bootstrap
        last = seconds_per_call(lambda: [loop._evaluate(name, bootstrap) for name in loaders.evals], 1)
    return Beside(
        evaluation=evaluation,
        evaluations=0 if split is None else _times(train.epochs, train.eval_every),
        last=last,
        checkpoint=checkpoint,
        checkpoints=1 + _times(train.epochs, train.save_every),
        training=train.epochs * len(loaders.train) * loop.images_per_batch / images_per_second,
    )


def _times(epochs: int, every: int) -> int:
    """How often something happens before the end that is due every so many epochs."""
    return (epochs - 1) // every if every else 0


def seconds_to_first_step(subject: Subject, folder: Path) -> float:
    """Start `relatum train` in a process of its own; return the seconds until its first step is taken and saved.

    Args:
        subject: what it trains.
        folder: where its run directory may be.
    """
    recipe, out = folder / "recipe.toml", folder / "started"
    config = replace(subject.config, stages=(subject.stage,), out="", train=replace(subject.config.train, max_steps=1))
    recipe.write_text(to_toml(config), encoding="utf-8")
    saved = (out / FOLDER if subject.pretrains else out) / "checkpoints" / INDEX
    command = [sys.executable, "-m", "relatum", "train", str(recipe), "--out", str(out)]
    began = time.perf_counter()
    with (folder / "started.txt").open("w+", encoding="utf-8") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, env=_surroundings())
        try:
            while not saved.exists():
                if child.poll() is not None or time.perf_counter() - began > _PATIENCE:
                    said.seek(0)
                    raise TrainingError(f"relatum train did not get to its first step: {said.read().strip()[-400:]}")
                time.sleep(_POLL)
            return time.perf_counter() - began
        finally:
            child.kill()
            child.wait()


def _surroundings() -> dict[str, str]:
    """Our own environment, in which the child finds the same package."""
    paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
