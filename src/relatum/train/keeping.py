"""What a run keeps so that it can go on: written by the first process, put back in all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from relatum.processes import from_first
from relatum.train.checkpoint import State, latest_checkpoint, save_checkpoint
from relatum.train.display import Display
from relatum.train.meter import MetricsLog
from relatum.train.nonfinite import LeftOut, require_finite_weights
from relatum.train.record import RunDirectory
from relatum.train.snapshot import Position, put_back, take_snapshot


class Keeper:
    """Checkpoints of a run, and how it continues from them.

    Args:
        directory: the run directory; None keeps nothing, or this is not the first process.
        model: what is trained.
        ema: the moving average of its weights, or None.
        optimizer: its optimizer.
        log: its metrics.
        left_out: the batches that it has left out.
        display: where sentences go.
        values: further JSON values to keep.
        images_per_batch: images of a micro-batch over all processes.
    """

    def __init__(
        self,
        directory: RunDirectory | None,
        model: nn.Module,
        ema: nn.Module | None,
        optimizer: torch.optim.Optimizer,
        log: MetricsLog,
        left_out: LeftOut,
        display: Display,
        values: dict[str, Any],
        images_per_batch: int,
    ) -> None:
        self.directory, self.model, self.ema, self.optimizer = directory, model, ema, optimizer
        self.log, self.left_out, self.display, self.values = log, left_out, display, values
        self.images_per_batch = images_per_batch
        self.kept: bool = from_first(directory is not None)

    def save(self, position: Position, seconds: float) -> None:
        """Write a checkpoint. All processes take part: it holds the random generators and sums of all of them."""
        if not self.kept:
            return
        require_finite_weights(position.step, self.model, self.ema)
        state = take_snapshot(self.model, self.ema, self.optimizer)
        place = {"position": asdict(position), "images_per_batch": self.images_per_batch, "seconds": seconds}
        state.values |= {**self.values, **place, "log": self.log.state(), "nonfinite": self.left_out.places}
        if self.directory is not None:
            save_checkpoint(self.directory.checkpoints, state, position.step)

    def restore(self, accumulate: int, steps_per_epoch: int) -> tuple[Position, float] | None:
        """Put back the newest checkpoint that is whole.

        Args:
            accumulate: micro-batches of a step.
            steps_per_epoch: optimizer steps of an epoch.

        Returns:
            Where training stands and the seconds it took so far; None if there is nothing to continue.
        """
        state = from_first(None if self.directory is None else self._newest(self.directory))
        if state is not None:
            put_back(state, self.model, self.ema, self.optimizer)
            self.log.restore(state.values["log"])
            self.left_out.restore(state.values.get("nonfinite", []))
        if self.directory is not None:
            self.log.rows = self.directory.keep_metrics(self.log.rows)
        if state is None:
            return None
        before = state.values.get("images_per_batch", self.images_per_batch)
        saved = Position(**state.values["position"])
        position = saved.with_batches_of(self.images_per_batch, before, accumulate, steps_per_epoch)
        if self.directory is not None:
            self.display.say(f"Continuing {self.directory.path} after step {position.step}.")
        return position, state.values["seconds"]

    def _newest(self, directory: RunDirectory) -> State | None:
        state, problems = latest_checkpoint(directory.checkpoints)
        for problem in problems:
            self.display.say(problem)
        return state
