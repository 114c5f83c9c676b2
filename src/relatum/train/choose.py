"""Threads and precision by measurement, where `train.precision` is "measure": a second or two before the first step.

The rule of `pick_precision` knows the processor but not the model; a measurement knows both, but two runs of one
command may come to different answers. So the rule is the default, and a run keeps the answer it began with.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from relatum.batch import Batch
from relatum.config import TrainConfig
from relatum.data.loaders import Loaders
from relatum.models.quick import quickly
from relatum.processes import from_first
from relatum.train.before import Before
from relatum.train.device import autocast, pick_precision
from relatum.train.display import Display
from relatum.train.record import RunDirectory
from relatum.train.task import Task

ENTRY = "measured"
_SECONDS = 1.5
_IMAGES, _FEW = 32, 8
_HOPELESS = 3.0  # times the fastest: not measured any further
_CLEARLY = 1.1  # how much faster than the rule's choice another must be: less may be noise


@dataclass(frozen=True)
class Setting:
    """One way to compute: a precision and a number of threads."""

    precision: str
    threads: int

    def __str__(self) -> str:
        return f"{self.precision}, {self.threads} thread{'' if self.threads == 1 else 's'}"


def settle(
    config: TrainConfig,
    task: Task,
    loaders: Loaders,
    device: torch.device,
    directory: RunDirectory | None,
    display: Display,
    *,
    fresh: bool,
) -> str:
    """Return the precision of a run and set its threads: as the run began, or, if it begins now, as measured.

    All processes take part and come to what the first one found. Neither weights nor buffers, random numbers or the
    order of the data are changed.

    Args:
        config: precision "measure"; threads that are given are kept.
        task: what is trained, on its device.
        loaders: its data.
        device: where it computes; off the CPU the rule is right and nothing is measured.
        directory: whose manifest keeps the answer; None in other processes than the first, or if nothing is kept.
        display: where the sentence goes.
        fresh: whether no step has been taken yet.
    """
    rule = Setting(pick_precision("auto", device), config.threads or torch.get_num_threads())
    known = from_first(None if directory is None else directory.manifest.get(ENTRY))
    if known is None and fresh and device.type == "cpu":
        task.set_epoch(0, config.epochs)
        speeds = measure(task.train(), next(iter(loaders.train.epoch(0))), device, _candidates(rule, config), config)
        best = from_first(pick(speeds, rule))
        known = {"precision": best.precision, "threads": best.threads, "images_per_second": _rounded(speeds)}
        if directory is not None:
            directory.update_manifest(**{ENTRY: known})
        display.say(_sentence(best, speeds))
    if known is None:
        return rule.precision
    torch.set_num_threads(config.threads or int(known["threads"]))
    return str(known["precision"])


def pick(speeds: dict[Setting, float], rule: Setting) -> Setting:
    """Return the fastest setting, or the rule's if that is nearly as fast."""
    best = max(speeds, key=lambda setting: speeds[setting])
    return rule if speeds.get(rule, 0.0) * _CLEARLY >= speeds[best] else best


def measure(
    task: Task, batch: Batch, device: torch.device, settings: Sequence[Setting], config: TrainConfig
) -> dict[Setting, float]:
    """Images per second of forward and backward passes in each setting that is not hopeless, measured in turn.

    Args:
        task: in training mode; left as it was.
        batch: images of the run, of which a few are used.
        device: where the task is.
        settings: what to try.
        config: channels_last.
    """
    few, more = (_first(batch, n).to(device, channels_last=config.channels_last) for n in (_FEW, _IMAGES))
    before, threads = Before(task, device), torch.get_num_threads()
    before.keep()
    began = time.perf_counter()
    try:
        # Twice: the first pass of its kind also makes what later ones use again.
        glimpse = {s: min(_seconds(task, few, device, s) for _ in range(2)) for s in settings}
        slowest = _HOPELESS * min(glimpse.values())
        hopeful = from_first([s for s in settings if glimpse[s] <= slowest])
        taken: dict[Setting, list[float]] = {setting: [] for setting in hopeful}
        for round_ in itertools.count():
            if from_first(round_ > 0 and time.perf_counter() - began > _SECONDS):
                break
            for setting in hopeful:
                taken[setting].append(_seconds(task, more, device, setting))
    finally:
        before.put_back()
        torch.set_num_threads(threads)
    return {setting: len(more) / statistics.median(seconds) for setting, seconds in taken.items()}


def _seconds(task: Task, batch: Batch, device: torch.device, setting: Setting) -> float:
    """Seconds of one forward and backward pass; no gradient is left behind."""
    torch.set_num_threads(setting.threads)
    trained = [p for p in task.parameters() if p.requires_grad]
    began = time.perf_counter()
    with quickly(task):  # as the loop
        with autocast(setting.precision, device):
            loss: Tensor = task(batch)["loss"]
        torch.autograd.grad(loss, trained, allow_unused=True)
    return time.perf_counter() - began


def _candidates(rule: Setting, config: TrainConfig) -> list[Setting]:
    """What could be better than the rule: the rule comes first."""
    threads = {rule.threads} if config.threads else {rule.threads, 1}
    others = [Setting(p, t) for p in ("float32", "bfloat16") for t in sorted(threads, reverse=True)]
    return [rule, *(setting for setting in others if setting != rule)]


def _first(batch: Batch, images: int) -> Batch:
    """The first images of a batch."""
    parts: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: value[:images] for name, value in parts.items() if value is not None})


def _rounded(speeds: dict[Setting, float]) -> dict[str, float]:
    return {str(setting): round(speed, 1) for setting, speed in speeds.items()}


def _sentence(best: Setting, speeds: dict[Setting, float]) -> str:
    others = "; ".join(f"{setting}: {speed:.0f}" for setting, speed in speeds.items() if setting != best)
    beside = f" ({others})" if others else ""
    return f"Measured before the first step: {best}, {speeds[best]:.0f} images/s{beside}."
