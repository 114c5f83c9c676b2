"""Two processes, one of which meets a loss that is not finite: stop, leave out, or go back, each in a run of its own.

As a program: parallel_nonfinite.py FOLDER, in each process. Leaves answer-RANK.json behind.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from relatum import loaders_from_splits, processes
from relatum.config import DataConfig, TrainConfig
from relatum.data import from_arrays
from relatum.errors import RelatumError
from relatum.objectives import CrossEntropy
from relatum.train import ClassificationTask, Display, fit

DATA = DataConfig(image_size=16, augment="none", normalise="half", workers=0, batch_size=4)
TRAIN = TrainConfig(epochs=2, lr=0.05, precision="float32", device="cpu", channels_last=False, ema=0.9)
BAD_PASS = 4  # of the second process; an epoch has five


class Breaks(nn.Module):
    """Batch normalisation and a classifier; at one pass its output is not finite in the second process."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(768), nn.Linear(768, 3)
        self.bad: set[bytes] = set()
        self.passes = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = self.fc(self.norm(images.flatten(1)))
        if self.training and processes.rank() == 1:
            self.passes += 1
            key = images.numpy().tobytes()  # met again, the same batch is bad again
            if self.passes == BAD_PASS:
                self.bad.add(key)
            if key in self.bad:
                out = out * torch.tensor(float("nan"))
        return out


def train(policy: str, folder: Path) -> dict[str, object]:
    random = np.random.default_rng(0)
    source = from_arrays(random.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), np.arange(40) % 3)
    loaders = loaders_from_splits({"train": source}, DATA, epochs=TRAIN.epochs)
    torch.manual_seed(1)
    task = ClassificationTask(Breaks(), CrossEntropy())
    settings = replace(TRAIN, on_nonfinite=policy)
    try:
        run = fit(task, loaders, settings, out=folder / policy, display=Display(quiet=True))
        ended = {"status": run.status, "steps": run.steps}
    except RelatumError as error:
        ended = {"error": str(error)}
    weights = b"".join(p.detach().numpy().tobytes() for p in task.model.parameters())
    return {**ended, "weights": hashlib.sha256(weights).hexdigest()}


def main(folder: Path) -> None:
    processes.join()
    torch.set_num_threads(1)
    answer = {policy: train(policy, folder) for policy in ("stop", "skip", "rollback")}
    (folder / f"answer-{processes.rank()}.json").write_text(json.dumps(answer))
    processes.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
