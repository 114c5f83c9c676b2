"""Images per second, training ResNet-32 on CIFAR-100-LT with AutoAugment and Cutout.

(a) the usual way: PIL transforms in DataLoader workers, float32, contiguous
(b) relatum: images in memory, augmented in batches, bfloat16 where the hardware gains, channels-last
(c) the step of (b) on one batch that is always there: no input pipeline at all

Run: RELATUM_DATA=... python benchmarks/training_speed.py [--rounds 7] [--steps 20]
Bars: (b) at least 2.2 x (a), and at least 0.97 x (c).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import common
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from relatum.batch import Batch
from relatum.data.loaders import Loaders
from relatum.models import create_model
from relatum.train.loop import _Trainer


class Cutout:
    """One square hole in an image tensor (3, H, W), as the published pipelines cut it."""

    def __call__(self, image: Tensor) -> Tensor:
        """Return the image with the hole."""
        _, height, width = image.shape
        y, x = int(torch.randint(height, ())), int(torch.randint(width, ()))
        image[:, max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
        return image


class UsualDataset(Dataset[tuple[Tensor, int]]):
    """What most training scripts have: PIL images through a chain of transforms."""

    def __init__(self, loaders: Loaders) -> None:
        self.images = loaders.train.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = loaders.train.source.targets
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10),
                transforms.ToTensor(),
                Cutout(),
                transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), int(self.targets[index])


def usual_way(loaders: Loaders, steps: int) -> float:
    """Images per second of (a)."""
    model = create_model("resnet32-cifar", 100).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loss = nn.CrossEntropyLoss()
    loader = DataLoader(UsualDataset(loaders), common.BATCH, shuffle=True, num_workers=2, drop_last=True)
    batches = iter(loader)

    def step() -> None:
        images, targets = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss(model(images), targets).backward()
        optimizer.step()

    for _ in range(6):  # the workers' head start (two prefetched batches each) is used up before the clock starts
        step()
    return common.BATCH / common.seconds_per_call(step, steps)


def endless(loaders: Loaders) -> Iterator[Batch]:
    """Training batches, epoch after epoch."""
    return itertools.chain.from_iterable(loaders.train.epoch(epoch) for epoch in itertools.count())


def ours(loop: _Trainer, batches: Iterator[Batch], steps: int) -> float:
    """Images per second of (b)."""
    loop._step([next(batches)])
    began = time.perf_counter()
    for _ in range(steps):
        loop._step([next(batches)])
    return common.BATCH * steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    config = common.cifar_config("cifar100-lt-100/balanced-softmax")
    loaders, words = common.cifar_loaders(config)
    loop, batches = common.trainer(loaders, config), endless(loaders)
    resident = next(endless(loaders))
    ways = {
        "a": lambda: usual_way(loaders, args.steps),
        "b": lambda: ours(loop, batches, args.steps),
        "c": lambda: ours(loop, itertools.repeat(resident), args.steps),
    }
    speed = common.interleaved(ways, args.rounds)
    print(f"{words}; batch {common.BATCH}, {torch.get_num_threads()} threads, precision {loop.precision}")
    names = {"a": "usual way", "b": "relatum", "c": "resident batch"}
    for way, name in names.items():
        print(f"({way}) {name:<15} median {statistics.median(speed[way]):7.0f} images/s")
    print(f"(b)/(a) {common.ratio(speed['b'], speed['a'])}   bar: at least 2.2")
    print(f"(b)/(c) {common.ratio(speed['b'], speed['c'])}   bar: at least 0.97")


if __name__ == "__main__":
    main()
