"""`minutes`: as many epochs as fit into a given time on this machine, found by timing a few steps."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from relatum.batch import Batch
from relatum.config import RunConfig
from relatum.data.loaders import Loaders
from relatum.errors import ConfigError
from relatum.models.quick import quickly
from relatum.processes import from_first, is_first
from relatum.train import ClassificationTask, Display
from relatum.train.allocator import keep_freed_memory
from relatum.train.device import autocast, pick_device, pick_precision
from relatum.train.optim import build_optimizer

# The first step of a kind allocates, and chooses algorithms; the median of the others is what a step takes.
_UNTIMED, _TIMED = 1, 4
# Checkpoints, progress and a machine that is a little slower later on.
_RESERVE = 0.03

Build = Callable[[RunConfig], tuple[ClassificationTask, Loaders]]


def within_minutes(config: RunConfig, out: Path, build: Build, display: Display) -> RunConfig:
    """Return `config` with the number of epochs that `minutes` allows; without minutes, `config` itself.

    A run directory that was begun with the same minutes keeps its epochs: they were chosen once. The warm-up keeps its
    share of the epochs. Of several processes the first decides.

    Args:
        config: the settings of a recipe; its `train.epochs` only say how long the warm-up is in proportion.
        out: the run directory.
        build: makes a task and loaders to time; they are thrown away.
        display: told what was chosen.
    """
    if not config.minutes:
        return config
    kept = from_first(_kept_epochs(config, out) if is_first() else None)
    if kept is not None:
        return _with_epochs(config, kept)
    task, loaders = build(config)
    seconds, evaluation = from_first(_time(task, loaders, config))
    available = config.minutes * 60 * (1 - _RESERVE) - evaluation
    epochs = math.floor(available / seconds)
    if epochs < 1:
        raise ConfigError(
            f"minutes is {config.minutes:g}, but an epoch takes {seconds / 60:.1f} minutes here and the "
            f"evaluation {evaluation / 60:.1f}; allow more minutes, or take a smaller model or smaller images."
        )
    display.say(f"{config.minutes:g} minutes hold {epochs} epochs of {seconds:.1f} s on this machine.")
    return _with_epochs(config, epochs)


def _with_epochs(config: RunConfig, epochs: int) -> RunConfig:
    train = config.train
    warmup = min(train.warmup_epochs * epochs / train.epochs, 0.5 * epochs)
    return replace(config, train=replace(train, epochs=epochs, warmup_epochs=warmup))


def _kept_epochs(config: RunConfig, out: Path) -> int | None:
    """The epochs that an earlier start of this run chose; None if there was none, or for other minutes."""
    try:
        kept = json.loads((out / "config.json").read_text())
        return int(kept["train"]["epochs"]) if float(kept["minutes"]) == config.minutes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nothing begun there; a damaged file is reported by whoever opens the run


def _time(task: ClassificationTask, loaders: Loaders, config: RunConfig) -> tuple[float, float]:
    """Return the seconds of a mean epoch, and of one evaluation of all splits."""
    train = config.train
    if train.threads:
        torch.set_num_threads(train.threads)
    device = pick_device(train.device)
    precision = pick_precision(train.precision, device)
    if device.type == "cpu":
        keep_freed_memory()  # as the loop will: the steps are timed as they will be taken
    task.to(device)
    if train.channels_last:
        task.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(task.param_groups(train), train)

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with quickly(task):
            with autocast(precision, device):
                loss = task(batch.to(device, channels_last=train.channels_last))["loss"]
            loss.backward()
        optimizer.step()
        float(loss.detach())  # wait for a device that computes beside us

    def judge(batch: Batch) -> None:
        with torch.no_grad(), autocast(precision, device), quickly(task.model):
            task.model(batch.to(device, channels_last=train.channels_last).inputs)

    task.train()
    schedule = loaders.train.sizes
    places = {0: 1.0} if schedule is None else schedule.shares()
    batch_seconds = sum(share * _median(step, loaders.train.epoch(epoch)) for epoch, share in places.items())
    task.eval()
    evaluation = sum(_median(judge, iter(loader)) * len(loader) for loader in loaders.evals.values())
    return batch_seconds * len(loaders.train), evaluation


def _median(work: Callable[[Batch], None], batches: Iterator[Batch]) -> float:
    """The median seconds of a few steps, loading included; where there is a single batch, it has to do."""
    seconds: list[float] = []
    while len(seconds) < _UNTIMED + _TIMED:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        work(batch)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_UNTIMED:] or seconds)
