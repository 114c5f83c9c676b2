"""Measure one subject after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from relatum.bench.costs import beside_steps, seconds_to_first_step
from relatum.bench.measure import Spread
from relatum.bench.results import Result
from relatum.bench.speed import LOOP, chosen_by_rule, each_setting, precisions, thread_counts, three_ways
from relatum.bench.subjects import Subject

Show = Callable[[int, int], None]


def measure(subject: Subject, rounds: int, steps: int, show: Show = lambda done, total: None) -> Result:
    """Measure a subject on this machine.

    Args:
        subject: what to train.
        rounds: how often everything is measured, in turn.
        steps: steps timed together.
        show: called with (done, total) measurements.
    """
    before = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="relatum-bench-") as folder:
            return _measure(subject, rounds, steps, show, Path(folder))
    finally:
        torch.set_num_threads(before)


def _measure(subject: Subject, rounds: int, steps: int, show: Show, folder: Path) -> Result:
    task, loaders = subject.build()
    loop = subject.trainer(task, loaders)
    brief = max(rounds // 2, 1)  # a table of settings needs less care than a ratio that has a bar
    total = 2 * rounds + len(precisions(loop.device)) * len(thread_counts(loop.device)) * brief + 2
    done = iter(range(1, total + 1))

    def tick() -> None:
        show(next(done), total)

    speeds = three_ways(subject, task, loaders, rounds, steps, tick)
    settings = each_setting(loop, brief, max(steps // 2, 1), tick)
    speed = Spread.of(speeds[LOOP]).median
    beside = beside_steps(subject, task, loaders, folder / "run", speed, rounds)
    tick()
    start = seconds_to_first_step(subject, folder)
    tick()
    return Result(
        name=subject.name,
        batch=loop.images_per_batch * loop.config.accumulate,
        precision=loop.precision,
        threads=torch.get_num_threads(),
        speeds=speeds,
        settings=settings,
        rule=chosen_by_rule(loop),
        beside=beside,
        start=start,
        epochs=subject.train.epochs,
    )
