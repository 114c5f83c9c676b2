"""A Dataset of your own: anything with len(), indexing and class ids.

Run: python examples/own_dataset.py
"""

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import relatum
from relatum.config import DataConfig, TrainConfig
from relatum.data import from_dataset, loaders_from_splits, stratified_holdout
from relatum.objectives import BalancedSoftmax
from relatum.train import Display

COLOURS = {"red": (200, 60, 60), "green": (60, 180, 60), "blue": (60, 60, 200), "grey": (120, 120, 120)}
COUNTS = (120, 40, 12, 4)


class NoisyColours(Dataset[tuple[Image.Image, int]]):
    """Patches of a colour under strong noise, as PIL images of different sizes; no transforms inside."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.classes = list(COLOURS)  # read by from_dataset: name of each class id
        self.targets = np.repeat(np.arange(len(COLOURS)), COUNTS)  # read by from_dataset: class id of each item

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        random = np.random.default_rng([self.seed, index])
        label = int(self.targets[index])
        side = int(random.integers(20, 40))
        pixels = np.array(list(COLOURS.values())[label]) + random.normal(0, 90, (side, side, 3))
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), label


def main() -> None:
    torch.manual_seed(0)
    source = from_dataset(NoisyColours())
    print(source, dict(zip(source.class_names, source.prior().counts.tolist(), strict=True)))
    train, val = stratified_holdout(source, 0.25, seed=0)
    print(f"train {train.prior().counts.tolist()}, val {val.prior().counts.tolist()}: no class is lost")

    config = DataConfig(image_size=16, batch_size=32, augment="weak", normalise="half", workers=0)
    loaders = loaders_from_splits({"train": train, "val": val}, config, seed=0, epochs=8)
    batch = next(loaders.train.epoch(0))
    print(f"a batch: inputs {tuple(batch.inputs.shape)} {batch.inputs.dtype}, targets {tuple(batch.targets.shape)}")

    model = relatum.create_model("resnet20-cifar", source.num_classes)
    task = relatum.ClassificationTask(
        model, BalancedSoftmax(loaders.prior), relatum.attach(model, relatum.BatchFormer())
    )
    settings = TrainConfig(epochs=8, lr=0.05, precision="float32", eval_every=0)
    run = relatum.fit(task, loaders, settings, display=Display(quiet=True))
    for row in run.scores["val"].per_class:
        print(f"{row['name']:<6} {row['train_count']:4d} to train on, {row['support']:3d} seen: {row['accuracy']:.0%}")


if __name__ == "__main__":
    main()
