"""From uint8 images to what the model trains on: the stages of a `DataConfig` in order.

The same code serves both ways in which images arrive: a whole batch of small images from memory, or, in a loader
process, one large image at a time (n = 1). So both have the same distributions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relatum.config import DataConfig
from relatum.data.augment.colour import ColorJitter
from relatum.data.augment.geometric import HorizontalFlip, PadCrop, RandomResizedCrop
from relatum.data.augment.occlusion import Cutout, RandomErasing
from relatum.data.augment.policies import AutoAugment, RandAugment
from relatum.data.augment.timm_randaugment import TimmRandAugment
from relatum.data.preprocess import NORMALISE, fit_square, normalise, to_tensor
from relatum.errors import ConfigError

Policy = AutoAugment | RandAugment | TimmRandAugment


class Step(Protocol):
    """One change of uint8 images: what chance decides, for each image, and then what becomes of the pixels."""

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Any:
        """Choose for `n` images of the given size: a tensor, or a tuple of tensors, with a row for each image."""

    def apply(self, images: Tensor, chosen: Any) -> Tensor:
        """Change (N, 3, H, W) uint8 images, each as chosen for it."""


class TrainAugment:
    """Augment and normalise training images.

    weak: pad by an eighth of the side, crop, flip. crop: random resized crop of a fifth of the area or more (bicubic),
    flip, as masked autoencoders train. autoaugment, randaugment: weak, then the policy. imagenet: random resized crop,
    flip, colour jitter. deit: random resized crop, flip, timm's RandAugment; a crop of an image smaller
    than `image_size` is enlarged. (The released DeiT code crops with bicubic instead of bilinear interpolation, and
    with padding instead of resizing at 32 pixels.) Then, where switched on: Cutout, normalisation, random erasing.

    Args:
        config: the data settings.
    """

    def __init__(self, config: DataConfig) -> None:
        size = config.image_size
        weak = config.augment in ("weak", "autoaugment", "randaugment")
        self.size = size
        self.pad_crop = PadCrop(size // 8) if weak else None
        self.resized_crop = _build_crop(config)
        self.flip = None if config.augment == "none" else HorizontalFlip()
        self.policy = _build_policy(config)
        self.jitter = ColorJitter() if config.augment == "imagenet" else None
        self.cutout = Cutout(config.cutout) if config.cutout else None
        self.erasing = RandomErasing(config.erasing) if config.erasing else None
        self.mean, self.std = NORMALISE[config.normalise]

    @property
    def crops_full_images(self) -> bool:
        """Whether the images are best given in full resolution, because the crop chooses its own part of them."""
        return self.resized_crop is not None

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch.

        Args:
            images: (N, 3, S, S) uint8; with a random resized crop any (N, 3, H, W). Not changed.
            generator: the only source of randomness.

        Returns:
            (N, 3, S, S) float32, normalised.
        """
        return next(self.batches(images, [generator]))

    def batches(self, images: Tensor, generators: Sequence[torch.Generator]) -> Iterator[Tensor]:
        """Augment several batches together: the same images as one by one, in little more than half the time.

        A policy is hundreds of small operations on a few images each, which cost the same for a few more.

        Args:
            images: (B N, 3, H, W) uint8, the batches one after the other. Not changed.
            generators: B of them, one for each batch.

        Yields:
            Each batch, (N, 3, S, S) float32, normalised.
        """
        n, (h, w) = len(images) // len(generators), images.shape[-2:]
        chosen = zip(*(self._sample(n, h, w, generator) for generator in generators), strict=True)
        for step, parts in zip(self._steps(), chosen, strict=True):
            images = step.apply(images, _joined(parts))
        for batch, generator in zip(images.split(n), generators, strict=True):
            yield self._finished(batch, generator)

    def without_policy(self) -> TrainAugment:
        """Return the same augmentation without AutoAugment or RandAugment."""
        calm = copy.copy(self)
        calm.policy = None
        return calm

    def one(self, image: npt.NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        """Augment one image of any size: (H, W, 3) uint8 to (3, S, S) float32."""
        pixels = to_tensor(image)
        if not self.crops_full_images:
            pixels = fit_square(pixels, self.size, self.size)
        return self(pixels.unsqueeze(0), generator).squeeze(0)

    def _steps(self) -> list[Step]:
        steps = (self.resized_crop, self.pad_crop, self.flip, self.policy, self.jitter, self.cutout)
        return [step for step in steps if step is not None]

    def _sample(self, n: int, height: int, width: int, generator: torch.Generator) -> list[Any]:
        """Return what each step does to the `n` images of a batch."""
        if self.resized_crop is None and (height, width) != (self.size, self.size):
            raise ConfigError(
                f"images are {height} x {width} but data.image_size is {self.size}; bring them to that size first."
            )
        chosen = []
        for step in self._steps():
            chosen.append(step.sample(n, height, width, generator))
            if step is self.resized_crop:
                height = width = self.size
        return chosen

    def _finished(self, images: Tensor, generator: torch.Generator) -> Tensor:
        values = normalise(images, self.mean, self.std)
        if self.erasing is None:
            return values
        n, _, h, w = images.shape
        return self.erasing.apply(values, self.erasing.sample(n, h, w, generator), generator)


def _joined(parts: Sequence[Any]) -> Any:
    """Put what was chosen for several batches one after the other: tensors, or tuples of tensors."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    tensors = [torch.cat(part) for part in zip(*parts, strict=True)]
    return first._make(tensors) if hasattr(first, "_make") else tuple(tensors)


def _build_crop(config: DataConfig) -> RandomResizedCrop | None:
    match config.augment:
        case "crop":
            return RandomResizedCrop(config.image_size, scale=(0.2, 1.0), interpolation="bicubic")
        case "imagenet" | "deit":
            return RandomResizedCrop(config.image_size)
        case _:
            return None


def _build_policy(config: DataConfig) -> Policy | None:
    match config.augment:
        case "autoaugment":
            return AutoAugment()
        case "randaugment":
            return RandAugment(config.magnitude)
        case "deit":
            mean, _ = NORMALISE[config.normalise]
            return TimmRandAugment(config.magnitude, fill=tuple(round(255 * value) for value in mean))
        case _:
            return None


def build_augment(config: DataConfig) -> TrainAugment:
    """Build the training augmentation of `config`."""
    return TrainAugment(config)
