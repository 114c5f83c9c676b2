"""Images per second: the loop with its input pipeline, the same step without one, the usual way, and each setting."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from relatum.batch import Batch
from relatum.bench.measure import interleaved, seconds_per_call
from relatum.bench.subjects import Subject, endless
from relatum.bench.usual import UsualWay
from relatum.config import DataConfig
from relatum.data.loaders import Loaders
from relatum.recipes.pretraining_settings import pretrain_data
from relatum.train import Task
from relatum.train.device import multiplies_in_bfloat16, pick_precision
from relatum.train.loop import _Trainer

Done = Callable[[], None]
LOOP, RESIDENT, USUAL = "loop", "resident batch", "usual way"
# Streams take turns after so many steps: as many batches of 128 images as are augmented together.
_TURN = 4


def loop_speed(loop: _Trainer, batches: Iterator[Batch], steps: int) -> float:
    """Images per second of the loop's own step, after one that is not counted."""
    (speed,) = loop_speeds(loop, [batches], steps)
    return speed


def loop_speeds(loop: _Trainer, streams: Sequence[Iterator[Batch]], steps: int) -> list[float]:
    """Images per second of the loop's own step on each of several streams of batches.

    The streams take turns every few steps: a shared machine may change its speed within seconds, and what is compared
    should see the same of it. The first step on each is not counted.
    """
    accumulate, seconds = loop.config.accumulate, [0.0 for _ in streams]

    def step(batches: Iterator[Batch]) -> None:
        loop._step([next(batches) for _ in range(accumulate)])

    for batches in streams:
        step(batches)
    order = list(enumerate(streams))
    for done in range(0, steps, _TURN):
        calls = min(_TURN, steps - done)
        for number, batches in order:
            seconds[number] += calls * seconds_per_call(partial(step, batches), calls)
        order.reverse()
    return [loop.loaders.train.batch_size * accumulate * steps / spent for spent in seconds]


def three_ways(
    subject: Subject, task: Task, loaders: Loaders, rounds: int, steps: int, done: Done
) -> dict[str, list[float]]:
    """Images per second of each round: with real input, on one batch that is always there, and the usual way."""
    usual = UsualWay(task, loaders, usual_data(subject), subject.train)
    loop, batches = subject.trainer(task, loaders), endless(loaders)
    resident = itertools.repeat(next(endless(loaders)))
    ways = {
        LOOP: lambda: loop_speeds(loop, [batches, resident], steps),
        USUAL: lambda: [usual.images_per_second(steps)],
    }
    found = interleaved(ways, rounds, done)
    real, without = zip(*found[LOOP], strict=True)
    return {LOOP: list(real), RESIDENT: list(without), USUAL: [speed for (speed,) in found[USUAL]]}


def usual_data(subject: Subject) -> DataConfig:
    """The data settings of the stage that is measured."""
    return pretrain_data(subject.config) if subject.pretrains else subject.config.data


def each_setting(loop: _Trainer, rounds: int, steps: int, done: Done) -> dict[tuple[str, int], list[float]]:
    """Images per second by precision and number of threads, on one batch that is always there."""
    resident, before, chosen = itertools.repeat(next(endless(loop.loaders))), torch.get_num_threads(), loop.precision

    def measure(precision: str, threads: int) -> float:
        torch.set_num_threads(threads)
        loop.precision = precision
        return loop_speed(loop, resident, steps)

    settings = [(precision, threads) for precision in precisions(loop.device) for threads in thread_counts(loop.device)]
    ways = {f"{p} {t}": lambda p=p, t=t: measure(p, t) for p, t in settings}
    try:
        found = interleaved(ways, rounds, done)
    finally:
        torch.set_num_threads(before)
        loop.precision = chosen
    return {(p, t): found[f"{p} {t}"] for p, t in settings}


def chosen_by_rule(loop: _Trainer) -> tuple[str, int]:
    """What `train.precision` auto and `train.threads` 0 stand for here; threads that are set stay."""
    return pick_precision("auto", loop.device), torch.get_num_threads()


def precisions(device: torch.device) -> list[str]:
    """Those that the hardware multiplies in: a step in what it has to imitate can take a minute."""
    return ["float32", "bfloat16"] if multiplies_in_bfloat16(device) else ["float32"]


def thread_counts(device: torch.device) -> list[int]:
    """1, 2, 4 and so on up to the cores that this process may use; off the CPU, what is set."""
    if device.type != "cpu":
        return [torch.get_num_threads()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    powers = itertools.takewhile(lambda count: count < cores, (2**n for n in itertools.count()))
    return sorted({*powers, cores, torch.get_num_threads()})
