"""A loss or gradient that is not finite: what is written about it, and which batches a run leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from relatum.errors import TrainingError
from relatum.processes import agreed
from relatum.train.snapshot import Position
from relatum.train.trace import all_finite

Place = tuple[int, int]
# In the order in which a fault goes through a step.
_WORDS = {
    "weights": "the weights '{layer}.{tensor}' were not finite before this step already",
    "input": "the {layer} of the batch are not finite",
    "output": "first in the output of '{layer}'",
    "forward": "first in '{layer}', the {tensor}",
    "loss": "first in '{layer}', where the loss is computed; the outputs of the model are finite",
    "backward": "first in the gradient of the {tensor} of '{layer}'",
    "not repeated": "run again, the same step is finite, so that the fault may lie with the machine",
    "unknown": "in a layer that could not be found",
}


class GoBack(Exception):
    """The run is to go back to its last checkpoint."""


@dataclass
class LeftOut:
    """Batches that were left out because their step was not finite; with accumulation, groups of batches.

    Args:
        limit: how many there may be in a run.
        places: (epoch, batch) where each of them begins.
    """

    limit: int
    places: list[Place] = field(default_factory=list)

    def holds(self, position: Position) -> bool:
        """Whether the step at `position` is to be passed over."""
        return (position.epoch, position.batch) in self.places

    def passed(self, position: Position) -> int:
        """How many of the steps before `position` were left out."""
        return sum(place < (position.epoch, position.batch) for place in self.places)

    def add(self, position: Position) -> None:
        """Leave out the step at `position`."""
        self.places.append((position.epoch, position.batch))

    def restore(self, saved: Iterable[Iterable[int]]) -> None:
        """Go on with the places that a checkpoint holds."""
        self.places = [(epoch, batch) for epoch, batch in saved]

    def entries(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"nonfinite_skipped": len(self.places), "nonfinite_places": [list(place) for place in self.places]}

    def sentence(self) -> str:
        """Say how many batches were left out."""
        some = "1 batch was" if len(self.places) == 1 else f"{len(self.places)} batches were"
        return f"{some} left out, because loss or gradient was not finite (at most {self.limit})."


def not_finite(loss: float, gradient: float) -> str:
    """Return "loss" or "gradient", whichever is not finite in any process; empty if both are finite in all."""
    bad_loss, bad_gradient = agreed(not math.isfinite(loss), not math.isfinite(gradient))
    return "loss" if bad_loss else "gradient" if bad_gradient else ""


def earliest(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what matters of what each process found: where the fault began, not where it was passed on."""
    kinds = list(_WORDS)
    number = min(range(len(found)), key=lambda process: kinds.index(found[process]["kind"]))
    return {**found[number], "process": number} if len(found) > 1 else dict(found[0])


def broken_weight(*models: nn.Module | None) -> str | None:
    """Return the name of the first parameter that is not finite."""
    named = (entry for model in models if model is not None for entry in model.named_parameters())
    return next((name for name, parameter in named if not all_finite(parameter)), None)


def require_finite_weights(step: int, *models: nn.Module | None) -> None:
    """Refuse to save weights that are not finite: they would take the place of good ones."""
    name = broken_weight(*models)
    if name is not None:
        raise TrainingError(
            f"the weights '{name}' are not finite after step {step}, so they were not saved; the checkpoint before "
            "is good. Try a lower --train.lr, or --train.clip 1."
        )


def as_json(value: Any) -> Any:
    """Return nested values with "nan", "inf" and "-inf" for the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: as_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def where(first: Mapping[str, Any]) -> str:
    """Say in words what `find_first` found."""
    kind = "output" if (first["kind"], first.get("tensor")) == ("forward", "output") else first["kind"]
    words = _WORDS[kind].format(layer=first.get("layer", ""), tensor=first.get("tensor", ""))
    return f"{words} (process {first['process']})" if "process" in first else words


def left_out_words(what: str, report: Mapping[str, Any], left_out: LeftOut) -> str:
    """Say that the batch of a report is left out."""
    back = "going back to the last checkpoint and leaving" if report["action"] == "rollback" else "leaving"
    return (
        f"The {what} is not finite at step {report['step']}: {where(report['first'])}; {back} its batch out "
        f"({len(left_out.places)} of at most {left_out.limit})."
    )


def stop(what: str, report: Mapping[str, Any], left_out: LeftOut | None, written: str) -> TrainingError:
    """Return the error that ends a run at a step that is not finite.

    Args:
        what: "loss" or "gradient".
        report: what failure.json holds.
        left_out: the batches left out so far, if that is why the run ends; else None.
        written: path of failure.json; empty if there is none.
    """
    details = f" Details: {written}." if written else ""
    enough = f" {left_out.sentence()}" if left_out is not None else ""
    return TrainingError(
        f"the {what} is not finite at step {report['step']} (learning rate {report['lr']:.3g}): "
        f"{where(report['first'])}. Stopped before the step; checkpoints written before are good.{enough}{details} "
        "Try a lower --train.lr, --train.clip 1, or --train.precision float32."
    )
