"""Train small float64 models and leave their weights behind: run with two processes, and with one, and compare.

As a program: parallel_training.py FOLDER, in each process.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from relatum import BatchFormer, BatchFormerV2, attach, create_model, loaders_from_splits, processes
from relatum.config import DataConfig, ObjectiveConfig, TrainConfig
from relatum.data import from_arrays
from relatum.objectives import build_objective
from relatum.relation import Presence
from relatum.train import ClassificationTask, Display, fit

IMAGES, BATCH = 61, 16  # an odd number: the padding that gives both ranks the same length must not become a batch
DATA = DataConfig(image_size=16, augment="none", normalise="half", workers=0, eval_batch_size=7)
TRAIN = TrainConfig(epochs=2, lr=0.05, precision="float32", device="cpu", channels_last=False, ema=0.9, clip=1.0)


class Double(nn.Module):
    """A model in float64, fed with the float32 images of the loaders."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images.double())


def vit() -> nn.Module:
    torch.manual_seed(5)
    return create_model("vit-nano-p8", 4, img_size=16)


def flat() -> nn.Module:
    torch.manual_seed(5)
    layers = [nn.Flatten(), nn.Linear(768, 16), nn.Tanh(), nn.Linear(16, 4)]
    return nn.Sequential(*layers)


# name: model, relation, objective, changes of the training (and when the relation takes part)
CASES = {
    "plain": (flat, None, "cross-entropy", {}),
    "accumulated": (flat, None, "balanced-softmax", {"accumulate": 3}),
    "adamw, without clipping": (flat, None, "cross-entropy", {"optimizer": "adamw", "lr": 0.01, "clip": 0.0}),
    "BatchFormer": (flat, BatchFormer(dropout=0.0, gather=True), "balanced-softmax", {}),
    "BatchFormer, apart": (flat, BatchFormer(dropout=0.0), "balanced-softmax", {}),
    "BatchFormer, two layers": (flat, BatchFormer(dropout=0.0, layers=2, gather=True), "cross-entropy", {}),
    "BatchFormer, fading": (
        flat,
        BatchFormer(dropout=0.0, gather=True),
        "balanced-softmax",
        {"presence": Presence(fade_start=0.25, fade_end=0.6)},
    ),
    "BatchFormerV2": (vit, BatchFormerV2(at="blocks.1", dropout=0.0, gather=True), "cross-entropy", {}),
    "BatchFormerV2, shared": (
        vit,
        BatchFormerV2(at=("blocks.0", "blocks.2"), dropout=0.0, share=True, gather=True),
        "balanced-bce",
        {"accumulate": 2},
    ),
    **{
        name: (flat, None, name, {})
        for name in ("focal", "class-balanced", "logit-adjusted", "vector-scaling", "bce", "influence-balanced", "lade")
    },
}


def train(case: str) -> dict[str, torch.Tensor]:
    """Train one case and return its weights, their average, and what was measured."""
    model_of, spec, objective, changes = CASES[case]
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (IMAGES, 16, 16, 3), dtype=np.uint8)
    targets = np.sort(random.integers(0, 4, IMAGES) ** 2 // 3)
    names = [str(k) for k in range(4)]
    source, test = from_arrays(images, targets, names), from_arrays(images[:13], targets[:13], names)
    data = replace(DATA, batch_size=BATCH // processes.world())
    loaders = loaders_from_splits({"train": source, "test": test}, data, epochs=TRAIN.epochs)
    model = Double(model_of())
    if spec is not None:
        spec = replace(spec, gather=spec.gather and processes.world() > 1)
        if isinstance(spec, BatchFormerV2):
            spec = replace(spec, at=tuple(f"model.{at}" for at in ([spec.at] if isinstance(spec.at, str) else spec.at)))
        torch.manual_seed(6)
    relation = None if spec is None else attach(model, spec)
    if relation is not None:
        relation.module.double()
    objective = build_objective(ObjectiveConfig(name=objective), loaders.prior)
    changes = dict(changes)
    task = ClassificationTask(model, objective, relation, presence=changes.pop("presence", None))
    run = fit(task, loaders, replace(TRAIN, **changes), display=Display(quiet=True))
    scores = run.scores["test"]
    measured = torch.tensor([scores.top1, scores.nll, float(scores.samples)], dtype=torch.float64)
    return {**task.model.state_dict(), "measured": measured}


def main(folder: Path) -> None:
    processes.join()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for case in CASES:
        found = train(case)
        if processes.is_first():
            torch.save(found, folder / f"{case}-{processes.world()}.pt")
    processes.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
