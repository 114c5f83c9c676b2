"""Tasks whose numbers go wrong at chosen places, and a look at the whole state before and after each step."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from tiny import CLASSES, EVERYTHING, loaders, quiet

from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask, fit, loop
from relatum.train.snapshot import take_snapshot

CONFIG = replace(EVERYTHING, nonfinite_limit=4)


class _BadSlope(torch.autograd.Function):
    """The identity, with a gradient that is `factor` times the true one."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Fuse(nn.Module):
    """A layer without weights that does nothing, until it is told to do harm."""

    def __init__(self) -> None:
        super().__init__()
        self.harm = ""

    def forward(self, x):
        if self.harm == "forward":
            return x * math.inf
        factor = {"slope": math.inf, "steep": 1e37}.get(self.harm)
        return x if factor is None else _BadSlope.apply(x, factor)


class FusedNet(nn.Module):
    """A convolution, BatchNorm, dropout, a fuse and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 5, stride=3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.fuse = Fuse()
        self.fc = nn.Linear(8, len(CLASSES))

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        if self.fuse.harm == "between":
            x = x / x.detach().sub(x.detach())
        return self.fc(self.fuse(self.drop(x)))


class Harmful(ClassificationTask):
    """Goes wrong in the micro-batches of `places`, (epoch, number in the epoch), each time they are met.

    Micro-batches are known by their samples, not by counting calls, so that a replay finds what the step found.
    """

    def __init__(self, data, places, harm, *, relation=False, once=False) -> None:
        torch.manual_seed(0)
        model = FusedNet()
        handle = attach(model, BatchFormer(heads=2, dropout=0.3), num_classes=len(CLASSES)) if relation else None
        super().__init__(model, CrossEntropy(), handle)
        self.harm, self.once, self.met = harm, once, 0
        self.bad = {(epoch, tuple(list(data.train.epoch(epoch))[number].index.tolist())) for epoch, number in places}

    def set_epoch(self, epoch, epochs):
        super().set_epoch(epoch, epochs)
        self.epoch = epoch

    def forward(self, batch):
        wrong = (self.epoch, tuple(batch.index.tolist())) in self.bad and not (self.once and self.met)
        self.met += wrong
        self.model.fuse.harm = self.harm if wrong else ""
        if wrong and self.harm == "input":
            batch = replace(batch, inputs=batch.inputs / 0)
        output = super().forward(batch)
        if wrong and self.harm in ("nan", "inf"):
            output["loss"] = output["loss"] * float(self.harm)
        return output


def harmful_fit(out, places, harm, config=CONFIG, display=None, *, relation=True, once=False, **data):
    """A run of three epochs of five steps in which the steps of `places` are not finite."""
    built = loaders(**({"augment": "weak", "mixup": 0.4, "seed": 3} | data))
    task = Harmful(built, places, harm, relation=relation, once=once)
    return fit(task, built, config, out=out, display=display or quiet()), task


@contextmanager
def watched_steps():
    """Collect (tensors before, tensors after) of every step: weights, buffers, average, optimizer, random numbers."""
    seen = []
    real = loop._Trainer._step

    def look(self, group):
        before = _everything(self)
        try:
            return real(self, group)
        finally:
            seen.append((before, _everything(self)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Trainer, "_step", look)
        yield seen


def _everything(trainer):
    state = take_snapshot(trainer.task.model, trainer.ema and trainer.ema.module, trainer.optimizer)
    return state.tensors | {"groups": torch.tensor([group["lr"] for group in trainer.optimizer.param_groups])}


SKIP, ROLLBACK = replace(CONFIG, on_nonfinite="skip"), replace(CONFIG, on_nonfinite="rollback")
SHORT = replace(CONFIG, epochs=1, eval_every=0)


def failure_of(out):
    return json.loads((out / "failure.json").read_text())


def manifest(out):
    return json.loads((out / "manifest.json").read_text())
