"""Small data and models for the tests of the loop: noise with a little colour, a network of a few hundred weights."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from relatum.config import DataConfig, TrainConfig
from relatum.data import Loaders, from_arrays, loaders_from_splits
from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask, Display, Run, fit

CLASSES = ("red", "green", "blue")
DATA = DataConfig(image_size=16, batch_size=8, eval_batch_size=16, workers=0, augment="none", normalise="half")
TRAIN = TrainConfig(epochs=3, lr=0.05, weight_decay=1e-3, precision="float32", device="cpu", channels_last=False)
# Everything that carries state between steps: momentum, averages, dropout in model and relation, mixing, BatchNorm.
EVERYTHING = replace(TRAIN, ema=0.9, clip=5.0, seed=3)


def source(images: int, seed: int = 0, contrast: float = 40.0):
    """Noise images (16, 16, 3) whose class shows in the mean of one channel; `contrast` 0 leaves nothing to learn."""
    random = np.random.default_rng(seed)
    targets = np.arange(images) % len(CLASSES)
    pixels = random.normal(110, 25, (images, 16, 16, 3))
    pixels[np.arange(images), :, :, targets] += contrast
    return from_arrays(pixels.clip(0, 255).astype(np.uint8), targets, CLASSES)


def loaders(images: int = 40, *, seed: int = 0, epochs: int = 3, splits: tuple[str, ...] = ("val",), **data) -> Loaders:
    """Loaders over `images` training images, 12 in each of the other splits."""
    evals = {name: source(12, seed=50 + number) for number, name in enumerate(splits)}
    return loaders_from_splits({"train": source(images), **evals}, replace(DATA, **data), seed=seed, epochs=epochs)


class Net(nn.Module):
    """A convolution, BatchNorm, dropout and a classifier."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 5, stride=3)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(width, len(CLASSES))

    def forward(self, x):
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


class Smooth(nn.Module):
    """No BatchNorm, no dropout, float64 inside: gradients of micro-batches add up to those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 5, stride=3)
        self.fc = nn.Linear(4, len(CLASSES))
        self.double()

    def forward(self, x):
        return self.fc(self.conv(x.double()).tanh().mean((2, 3)))


def task(*, relation: bool = False, dropout: float = 0.0, model: nn.Module | None = None, seed: int = 0, **options):
    """A task with cross-entropy; with `relation`, a BatchFormer with dropout."""
    torch.manual_seed(seed)
    model = Net(dropout=dropout) if model is None else model
    spec = BatchFormer(heads=2, dropout=0.3)
    handle = attach(model, spec, num_classes=len(CLASSES)) if relation else None
    return ClassificationTask(model, CrossEntropy(), handle, **options)


def quiet() -> Display:
    """A display that shows nothing."""
    return Display(quiet=True)


class SignalAt(Display):
    """A display that sends a signal to this process when a step is done."""

    def __init__(self, *steps: int, number: int = signal.SIGINT) -> None:
        super().__init__(quiet=True)
        self.steps, self.number = set(steps), number

    def step(self, done: int, info: str, eta_seconds: float) -> None:
        if done in self.steps:
            os.kill(os.getpid(), self.number)


class Talk(Display):
    """A display that remembers what it was told to say."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def rows(run: Path, *, kind: str | None = None, speed: bool = False) -> list[dict]:
    """The rows of metrics.jsonl, without the speed, which no two runs share."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row for row in found if kind in (None, row["kind"])]
    return found if speed else [{k: v for k, v in row.items() if k != "images_per_second"} for row in found]


def newest(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of the newest checkpoint of a run."""
    index = json.loads((run / "checkpoints" / "index.json").read_text())
    return load_file(run / "checkpoints" / index[-1]["file"])


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Every tensor equal to the last bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the state of a model."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def fit_everything(out: Path | str, display: Display | None = None, config: TrainConfig = EVERYTHING, **data) -> Run:
    """A run of three epochs of five steps with everything on, or what is left of it."""
    options = {"augment": "weak", "mixup": 0.4, "seed": 3} | data
    built = task(relation=True, dropout=0.4)
    return fit(built, loaders(**options), config, out=out, display=display or quiet())


def assert_as_if_nothing_happened(out: Path, whole: Path) -> None:
    """The run in `out` ended as the one in `whole`, to the last bit and row."""
    assert_same_bits(newest(out), newest(whole))
    assert rows(out) == rows(whole)
    assert (out / "scores.json").read_text() == (whole / "scores.json").read_text()
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"
