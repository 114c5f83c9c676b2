"""Mean and spread over seeds, and the difference of two arms with its standard error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from claims_tools.rows import Row
from relatum.report.format import finite

NAT_COLUMNS = ("NLL",)  # all others are fractions, shown as percent


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: in points, or nats.
        std: sample standard deviation (n - 1); None with one seed.
        seeds: the seeds.
    """

    mean: float
    std: float | None
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """One arm minus another.

    Args:
        mean: difference of the means.
        error: its standard error; None where an arm has one seed.
        paired: whether the differences were taken seed by seed, because both arms have the same seeds.
    """

    mean: float
    error: float | None
    paired: bool


def by_seed(rows: Sequence[Row], arm: str, column: str) -> dict[int, float]:
    """Return the numbers of a column by seed, in points (nats for NLL), without those that are not defined."""
    factor = 1.0 if column in NAT_COLUMNS else 100.0
    found = {row["seed"]: finite(row.get(column)) for row in rows if row["arm"] == arm}
    return {seed: factor * value for seed, value in sorted(found.items()) if value is not None}


def estimate(values: Mapping[int, float]) -> Estimate | None:
    """Return mean and sample standard deviation; None without values."""
    if not values:
        return None
    numbers = list(values.values())
    return Estimate(statistics.fmean(numbers), _std(numbers), tuple(values))


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """Return `values` minus `base`; None where one of them is empty.

    With the same seeds: the mean of the differences of each seed, and their standard deviation over the root of n. With
    other seeds the errors of both means are added as squares.
    """
    if not values or not base:
        return None
    mean = statistics.fmean(values.values()) - statistics.fmean(base.values())
    if values.keys() == base.keys():
        std = _std([values[seed] - base[seed] for seed in values])
        return Difference(mean, None if std is None else std / math.sqrt(len(values)), paired=True)
    one, two = _std(list(values.values())), _std(list(base.values()))
    if one is None or two is None:
        return Difference(mean, None, paired=False)
    return Difference(mean, math.sqrt(one**2 / len(values) + two**2 / len(base)), paired=False)


def _std(numbers: Sequence[float]) -> float | None:
    return statistics.stdev(numbers) if len(numbers) > 1 else None
