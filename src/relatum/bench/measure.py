"""Measurements that stand a busy machine: every way once a round, in turn, and medians with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """What several rounds came to.

    Args:
        median: of the rounds.
        low: smallest.
        high: largest.
        rounds: how many there were.
    """

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up one value or more."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def to_dict(self) -> dict[str, float]:
        """Return everything as JSON values."""
        return asdict(self)


def interleaved(
    ways: Mapping[str, Callable[[], T]], rounds: int, done: Callable[[], None] = lambda: None
) -> dict[str, list[T]]:
    """Measure every way once a round, every other round backwards, so that noise of the machine hits all alike.

    Args:
        ways: by name, what measures once.
        rounds: how often.
        done: called after every measurement.

    Returns:
        By name, what was measured in each round.
    """
    results: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways)
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(ways[name]())
            done()
    return results


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Sum up the ratios of each round: what slows a round slows both sides of its ratio."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def seconds_per_call(call: Callable[[], object], calls: int) -> float:
    """Mean seconds on the clock of `calls` calls."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls
