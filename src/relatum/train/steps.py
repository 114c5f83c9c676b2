"""The guard of a step: what happens when its loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from relatum.batch import Batch
from relatum.config import TrainConfig
from relatum.errors import ConfigError
from relatum.processes import from_all, from_first
from relatum.train.before import Before
from relatum.train.display import Display
from relatum.train.nonfinite import GoBack, LeftOut, as_json, earliest, left_out_words, stop
from relatum.train.record import RunDirectory
from relatum.train.replay import find_first
from relatum.train.snapshot import Position
from relatum.train.task import Task


class StepGuard:
    """Keep what a step needs to be undone, and do as `train.on_nonfinite` says where it must not be taken.

    Args:
        task: the task that is trained.
        config: on_nonfinite.
        device: where it computes.
        left_out: the batches that are left out.
        directory: where failure.json and the count go; None writes nothing.
        display: where the sentence goes.
        kept: whether the run is kept; of several processes only the first has the directory.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        device: torch.device,
        left_out: LeftOut,
        directory: RunDirectory | None,
        display: Display,
        kept: bool = True,
    ) -> None:
        if config.on_nonfinite == "rollback" and not kept:
            raise ConfigError("train.on_nonfinite rollback needs a run directory to go back in; give out, or use skip.")
        self.task, self.directory, self.display = task, directory, display
        self.policy = config.on_nonfinite
        self.left_out = left_out
        self._before = Before(task, device)

    def begin(self) -> None:
        """A step begins: remember what its forward passes will change."""
        self._before.keep()

    def refuse(
        self, what: str, position: Position, group: list[Batch], again: Callable[[], Any], numbers: dict[str, Any]
    ) -> None:
        """Undo the passes of a step, write down where it went wrong, and leave its batches out.

        Args:
            what: "loss" or "gradient", whichever is not finite.
            position: where training stands.
            group: the micro-batches of the step.
            again: computes its gradients.
            numbers: what else failure.json is to hold.

        Raises:
            TrainingError: the run is to stop here.
            GoBack: the run is to go on from its last checkpoint.
        """
        first = earliest(from_all(self._first(group, again)))
        full = len(self.left_out.places) >= self.left_out.limit
        # No batch is to blame for weights that were broken before it.
        action = "stop" if full or first["kind"] == "weights" else self.policy
        place = {"step": position.step, "batch": position.batch}
        report = as_json({**place, "what": what, "action": action, "first": first, **_of_all(group, numbers)})
        written = from_first("" if self.directory is None else str(self.directory.write_failure(report)))
        if action == "stop":
            raise stop(what, report, self.left_out if full and self.policy != "stop" else None, written)
        self.left_out.add(position)
        self.display.say(left_out_words(what, report, self.left_out))
        if self.directory is not None:
            self.directory.update_manifest(**self.left_out.entries())
        if action == "rollback":
            raise GoBack

    def _first(self, group: list[Batch], again: Callable[[], Any]) -> dict[str, Any]:
        self._before.put_back()
        first = find_first(self.task, group, again)
        self._before.put_back()
        self.task.zero_grad(set_to_none=True)
        return first


def _of_all(group: list[Batch], numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the step, with the samples and loss parts of all processes one after another."""
    own = {"parts": numbers["parts"], "samples": [index for micro in group for index in micro.index.tolist()]}
    everyone = from_all(own)
    return {**numbers, **{key: [entry for part in everyone for entry in part[key]] for key in own}}
