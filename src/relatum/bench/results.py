"""What was measured about one subject, with the bars it is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relatum.bench.costs import Beside
from relatum.bench.measure import Spread, ratios
from relatum.bench.speed import LOOP, RESIDENT, USUAL

Setting = tuple[str, int]


@dataclass(frozen=True)
class Bar:
    """A promise about a number.

    Args:
        words: what is measured.
        limit: the number.
        least: whether the limit is the least that will do; else it is the most.
    """

    words: str
    limit: float
    least: bool

    def met(self, value: float) -> bool:
        """Whether `value` keeps the promise."""
        return value >= self.limit if self.least else value < self.limit


PIPELINE = Bar("real input / resident", 0.97, True)
AGAINST_USUAL = Bar("relatum / usual way", 2.2, True)
BESIDE = Bar("beside the steps", 0.05, False)
START = Bar("to the first step", 10.0, False)


@dataclass(frozen=True)
class Result:
    """Everything about one subject.

    Args:
        name: of the subject.
        batch: images of a step.
        precision: in which the loop computed.
        threads: with how many threads.
        speeds: images per second of each round, by way.
        settings: images per second of each round, by precision and threads.
        rule: the setting that `auto` takes.
        beside: what is spent beside the steps.
        start: seconds to the first step.
        epochs: of a run.
    """

    name: str
    batch: int
    precision: str
    threads: int
    speeds: Mapping[str, Sequence[float]]
    settings: Mapping[Setting, Sequence[float]]
    rule: Setting
    beside: Beside
    start: float
    epochs: int

    @property
    def bars(self) -> list[tuple[Bar, Spread]]:
        """Each bar with what was measured."""
        over = {name: ratios(self.speeds[LOOP], self.speeds[name]) for name in (RESIDENT, USUAL)}
        return [
            (PIPELINE, over[RESIDENT]),
            (AGAINST_USUAL, over[USUAL]),
            (BESIDE, Spread.of([self.beside.share])),
            (START, Spread.of([self.start])),
        ]

    @property
    def fastest(self) -> Setting:
        """The setting with the largest median."""
        return max(self.settings, key=lambda setting: Spread.of(self.settings[setting]).median)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "name": self.name,
            "batch": self.batch,
            "precision": self.precision,
            "threads": self.threads,
            "images_per_second": {name: Spread.of(values).to_dict() for name, values in self.speeds.items()},
            "settings": [
                {"precision": p, "threads": t, **Spread.of(values).to_dict()}
                for (p, t), values in self.settings.items()
            ],
            "auto": {"precision": self.rule[0], "threads": self.rule[1]},
            "epochs": self.epochs,
            "evaluation": {
                "seconds": self.beside.evaluation,
                "times": self.beside.evaluations,
                "last": self.beside.last,
            },
            "checkpoint": {"seconds": self.beside.checkpoint, "times": self.beside.checkpoints},
            "bars": [
                {"what": bar.words, "limit": bar.limit, "met": bar.met(found.median), **found.to_dict()}
                for bar, found in self.bars
            ],
        }
