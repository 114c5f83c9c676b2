"""The task is the seam: it turns a batch into a loss, and the loop knows nothing else about the method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from relatum.batch import Batch
from relatum.config import EvalConfig, TrainConfig
from relatum.data.loaders import Loaders
from relatum.evaluate import Scores, evaluate
from relatum.prior import ClassPrior
from relatum.train.groups import model_groups


class Measured(Protocol):
    """What an evaluation answers: `Scores` of a classifier, or what another task measures."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""

    def shown(self) -> dict[str, str]:
        """Return what a person sees while training."""

    def numbers(self) -> dict[str, float | None]:
        """Return what is logged."""


class Task(nn.Module):
    """What the loop trains. A subclass holds `model`, answers `forward`, and may use the other hooks.

    `forward(batch)` returns a dictionary with "loss" (a scalar to differentiate); every further scalar entry is a named
    part that is averaged and logged. A classifier also gives "logits" (N, K) of the plain model. As it stands, a task
    is evaluated as a classifier; one that is none overrides `evaluate` and `read_scores`.
    """

    model: nn.Module

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Turn a batch into {"loss", named parts}."""
        raise TypeError(f"{type(self).__name__} must define forward(batch)")

    def evaluate(
        self, model: nn.Module, loader: Iterable[Batch], prior: ClassPrior, config: EvalConfig, **how: Any
    ) -> Measured:
        """Measure `model` (this task's, or its moving average) on a split.

        Args:
            model: what to measure.
            loader: yields all samples of the split once.
            prior: training counts.
            config: shot rule and post-hoc options.
            **how: split, device, precision and channels_last, as `relatum.evaluate` takes them.
        """
        return evaluate(model, loader, prior, config=config, **how)

    def read_scores(self, entry: Mapping[str, Any]) -> Measured:
        """Undo `to_dict` of what `evaluate` gives."""
        return Scores.from_dict(entry)

    def draw(self, model: nn.Module, loaders: Loaders, folder: Path, epoch: int) -> None:
        """Called after each evaluation of a run that is kept: a place to leave pictures in the run directory."""

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, counted from 0."""

    def set_progress(self, done: float) -> None:
        """Called before each step with the share of the epochs that is done, from 0 to below 1.

        What a task derives from it needs no saving: a resumed run is told the same numbers.
        """

    def param_groups(self, config: TrainConfig) -> list[dict[str, Any]]:
        """Optimizer groups; `lr_scale` in a group multiplies the scheduled rate."""
        return model_groups(self.model, config)

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the task to notice that a run directory is used for another."""
        return {"task": type(self).__name__, "model": type(self.model).__name__, "parameters": self.deployed_parameters}

    def check_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after the first backward pass and before the first step."""

    @property
    def deployed_parameters(self) -> int:
        """Parameters of the model that is shipped."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def relation_batch_matters(self) -> bool:
        """Whether the samples of a micro-batch influence each other, so that splitting it changes the mathematics."""
        return False

    @property
    def related_processes(self) -> int:
        """Over how many processes samples influence each other; 0 if they do not."""
        return 0
