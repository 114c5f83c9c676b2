"""The one loop: two short runs on the generated shapes world, their scores, and one HTML page about both.

Run: python examples/fit_and_report.py [FOLDER]
Running it again with the same folder reads the finished runs instead of training them a second time.
"""

import sys
from pathlib import Path

import torch
from rich.console import Console

import relatum
from relatum.config import DataConfig, EvalConfig, TrainConfig
from relatum.data import loaders_from_splits, long_tail_counts
from relatum.data.shapes import shapes_source
from relatum.objectives import BalancedSoftmax, CrossEntropy, Objective
from relatum.report import comparison_table
from relatum.train import Display

CLASSES = 6
DATA = DataConfig(image_size=16, normalise="half", batch_size=32)
TRAIN = TrainConfig(epochs=2, lr=0.05, warmup_epochs=0.5, precision="float32", threads=1)
EVALUATE = EvalConfig(shot_rule="thirds")  # few classes: equal thirds by count


def train(name: str, folder: Path, *, related: bool) -> relatum.train.Run:
    counts = long_tail_counts("exponential", CLASSES, largest=120, imbalance=20)
    splits = {
        "train": shapes_source(counts, image_size=16),
        "test": shapes_source(30, classes=CLASSES, image_size=16, split="test"),
    }
    loaders = loaders_from_splits(splits, DATA, seed=TRAIN.seed, epochs=TRAIN.epochs)
    torch.manual_seed(TRAIN.seed)
    model = relatum.create_model("resnet20-cifar", loaders.prior.num_classes)
    objective: Objective = BalancedSoftmax(loaders.prior) if related else CrossEntropy(loaders.prior)
    relation = relatum.attach(model, relatum.BatchFormer()) if related else None
    task = relatum.ClassificationTask(model, objective, relation)
    return relatum.fit(task, loaders, TRAIN, out=folder / name, evaluation=EVALUATE, display=Display(name, quiet=True))


def main(folder: Path) -> None:
    runs = {
        "cross-entropy": train("cross-entropy", folder, related=False),
        "balanced+batchformer": train("balanced+batchformer", folder, related=True),
    }
    for name, run in runs.items():
        files = sorted(path.name for path in (folder / name).iterdir())
        print(f"{name}: {run.status} after {run.steps} steps, {run.seconds:.1f} s; {', '.join(files)}")
    Console().print(comparison_table({name: run.scores["test"].to_dict() for name, run in runs.items()}))
    print("two epochs show how it works, not which is better")

    scores = runs["cross-entropy"].scores["test"]
    print(f"cross-entropy: worst class {scores.worst_class}, interval of top-1 {scores.interval}")
    print(relatum.report([folder / name for name in runs]))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example"))
