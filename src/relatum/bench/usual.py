"""The usual way to train, to measure against: PIL images, transforms in loader processes, float32, contiguous."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from relatum.batch import Batch
from relatum.bench.measure import seconds_per_call
from relatum.config import DataConfig, TrainConfig
from relatum.data.loaders import Loaders
from relatum.data.preprocess import NORMALISE
from relatum.data.source import ImageSource
from relatum.train import MaskedTask, Task

Transform = Callable[[Image.Image], Tensor]


class Hole:
    """One square hole in an image tensor (3, H, W), as the published pipelines cut it.

    Args:
        side: of the hole, in pixels.
    """

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Tensor) -> Tensor:
        """Return the image with the hole."""
        _, height, width = image.shape
        y, x, half = int(torch.randint(height, ())), int(torch.randint(width, ())), self.side // 2
        image[:, max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 0
        return image


def usual_transform(config: DataConfig) -> Transform:
    """Torchvision's transforms for the augmentation of `config`; those of deit stand for timm's."""
    size = config.image_size
    flip = transforms.RandomHorizontalFlip()
    weak = [transforms.Resize((size, size)), transforms.RandomCrop(size, padding=size // 8), flip]
    policies: dict[str, list[Transform]] = {
        "none": [transforms.Resize((size, size))],
        "weak": weak,
        "crop": [transforms.RandomResizedCrop(size, (0.2, 1.0)), flip],
        "autoaugment": [*weak, transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)],
        "randaugment": [*weak, transforms.RandAugment(2, config.magnitude)],
        "imagenet": [transforms.RandomResizedCrop(size), flip, transforms.ColorJitter(0.4, 0.4, 0.4)],
        "deit": [transforms.RandomResizedCrop(size), flip, transforms.RandAugment(2, config.magnitude)],
    }
    hole = [Hole(config.cutout)] if config.cutout else []
    erasing = [transforms.RandomErasing(config.erasing)] if config.erasing else []
    colours = transforms.Normalize(*NORMALISE[config.normalise])
    return transforms.Compose([*policies[config.augment], transforms.ToTensor(), *hole, colours, *erasing])


class UsualImages(Dataset[tuple[Tensor, int, int]]):
    """What most training scripts have: one image at a time, from PIL through a chain of transforms.

    Args:
        source: the images.
        config: what is done to them.
    """

    def __init__(self, source: ImageSource, config: DataConfig) -> None:
        self.source, self.transform = source, usual_transform(config)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        """Return the image (3, S, S), its class and its place."""
        return self.transform(Image.fromarray(self.source.load(index))), int(self.source.targets[index]), index


class UsualWay:
    """A training script as most are: the same model and loss, but neither our input pipeline nor our loop.

    Mixup and cutmix, if the recipe has them, are applied to the batch, as in ours. A masked autoencoder decodes all
    patches, as the public ones do, and all threads compute one operation after the other.

    Args:
        task: what is trained; a copy is, in float32 and contiguous memory.
        loaders: whose images are read again, the usual way.
        data: what is done to them.
        train: optimizer and its settings.
    """

    def __init__(self, task: Task, loaders: Loaders, data: DataConfig, train: TrainConfig) -> None:
        self.task = copy.deepcopy(task).to(memory_format=torch.contiguous_format).train()
        if isinstance(self.task, MaskedTask):
            self.task.hidden_only = self.task.in_shares = False
        self.batch, self.mixer = loaders.train.batch_size, loaders.train.mixer
        self.workers = max(data.workers, 1)
        self.loader = DataLoader(
            UsualImages(loaders.train.source, data), self.batch, shuffle=True, num_workers=self.workers, drop_last=True
        )
        trained = [p for p in self.task.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer
        if train.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(trained, 1e-4, weight_decay=train.weight_decay)
        else:  # nobody's usual way is muon: a convolutional network has sgd
            self.optimizer = torch.optim.SGD(trained, 1e-3, train.momentum, weight_decay=train.weight_decay)
        self._device = next(self.task.parameters()).device

    def images_per_second(self, steps: int) -> float:
        """Measure `steps` steps; the workers' head start is used up before the clock starts."""
        batches = self._batches()
        for _ in range(2 * self.workers + 2):
            self._step(next(batches))
        return self.batch / seconds_per_call(lambda: self._step(next(batches)), steps)

    def _batches(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(0)
        while True:
            for images, targets, index in self.loader:
                batch = Batch(images, targets, index)
                yield batch if self.mixer is None else self.mixer(batch, generator)

    def _step(self, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.task(batch.to(self._device))["loss"].backward()
        self.optimizer.step()
