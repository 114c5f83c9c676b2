"""Where each pixel comes from: pad-crop, flip, random resized crop, and one affine gather for shear, shift and turn.

All functions take uint8 images (N, 3, H, W) and one set of parameters per image. Pixels from outside the image are
black (0 before normalisation), as in the papers' code and in torchvision's default, unless a `fill` is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from relatum.data.augment.resize import LARGEST, resize_boxes


@dataclass(frozen=True)
class PadCrop:
    """Pad each border with `pad` black pixels, then cut the original size out at a uniform place."""

    pad: int

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Return the (row, column) at which each crop starts in the padded image, (N, 2) int64."""
        return torch.randint(2 * self.pad + 1, (n, 2), generator=generator)

    def apply(self, images: Tensor, corners: Tensor) -> Tensor:
        """Crop each image of (N, 3, H, W) at its corner; the size stays."""
        h, w = images.shape[-2:]
        padded = functional.pad(images, (self.pad,) * 4).numpy()
        crops = np.empty(images.shape, padded.dtype)
        # A copy of each box by numpy takes half the time of one gather of all pixels by torch.
        for crop, image, (top, left) in zip(crops, padded, corners.tolist(), strict=True):
            crop[...] = image[:, top : top + h, left : left + w]
        return torch.from_numpy(crops)


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror each image left to right with probability one half."""

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Return which images are mirrored, (N,) bool."""
        return torch.rand(n, generator=generator) < 0.5

    def apply(self, images: Tensor, mirrored: Tensor) -> Tensor:
        """Mirror the chosen images of (N, 3, H, W)."""
        result, chosen = images.numpy().copy(), mirrored.numpy()
        result[chosen] = result[chosen][..., ::-1]  # by numpy, which takes half of torch's time
        return torch.from_numpy(result)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cut a box of random area and shape and resize it to `size` x `size`; boxes follow torchvision's rule.

    Up to ten boxes are tried; when none fits, the largest central box of an allowed shape is taken.

    Args:
        size: side of the result.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width over height.
        attempts: number of boxes tried.
        interpolation: of the resize, which is antialiased.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    attempts: int = 10
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Return (top, left, height, width) of each box in images of the given size, (N, 4) int64."""
        shape = (n, self.attempts)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        area = torch.empty(shape, dtype=torch.float64).uniform_(*self.scale, generator=generator) * height * width
        ratio = torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=generator).exp()
        w, h = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first = fits.long().argmax(1, keepdim=True)
        h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
        place = torch.rand((n, 2), dtype=torch.float64, generator=generator)
        top = (place[:, 0] * (height - h + 1)).long()
        left = (place[:, 1] * (width - w + 1)).long()
        boxes = torch.stack([top, left, h, w], dim=1)
        return torch.where(fits.any(1, keepdim=True), boxes, self._central(height, width))

    def _central(self, height: int, width: int) -> Tensor:
        h, w = height, width
        if width / height < self.ratio[0]:
            h = round(width / self.ratio[0])
        elif width / height > self.ratio[1]:
            w = round(height * self.ratio[1])
        return torch.tensor([(height - h) // 2, (width - w) // 2, h, w])

    def apply(self, images: Tensor, boxes: Tensor) -> Tensor:
        """Cut and resize: (N, 3, H, W) to (N, 3, size, size)."""
        if max(images.shape[-2:]) <= LARGEST and images.dtype == torch.uint8:
            return resize_boxes(images, boxes, self.size, self.interpolation)
        side = (self.size, self.size)
        parts = [
            functional.interpolate(image[None, :, y : y + h, x : x + w], side, mode=self.interpolation, antialias=True)
            for image, (y, x, h, w) in zip(images, boxes.tolist(), strict=True)
        ]
        return torch.cat(parts)


def affine(images: Tensor, matrices: Tensor, fill: Tensor | None = None) -> Tensor:
    """Move the pixels of each image by its own affine map, nearest neighbour, `fill` outside.

    Args:
        images: (N, C, H, W) uint8.
        matrices: (N, 2, 3) float64, from output to source place (x, y, 1), measured in pixels from the image centre.
        fill: colour of places outside, (C,) uint8; default black.

    Returns:
        (N, C, H, W) uint8.
    """
    n, c, h, w = images.shape
    columns = torch.arange(w, dtype=torch.float32) - (w - 1) / 2
    rows = (torch.arange(h, dtype=torch.float32) - (h - 1) / 2).unsqueeze(1)
    m = matrices.to(torch.float32).view(-1, 6, 1, 1).unbind(1)
    x = (m[0] * columns + m[2]) + m[1] * rows + (w - 1) / 2
    y = (m[3] * columns + m[5]) + m[4] * rows + (h - 1) / 2
    # A place outside is one in a frame of one pixel. A gather of uint8 is several times faster than `grid_sample`.
    across, down = (at.round_().clamp_(-1, side).long() for at, side in ((x, w), (y, h)))
    index = torch.add(across, down, alpha=w + 2).add_(w + 3).flatten(1)
    pixels = _framed(images, fill).flatten(2).gather(2, index.unsqueeze(1).expand(-1, c, -1))
    return pixels.view(n, c, h, w)


def _framed(images: Tensor, fill: Tensor | None) -> Tensor:
    """Return images (N, C, H, W) with one pixel more on each side, black or of the colour `fill` (C,)."""
    framed = functional.pad(images, (1, 1, 1, 1))
    if fill is not None:
        colour = fill.view(-1, 1, 1)
        for edge in (framed[..., :1, :], framed[..., -1:, :], framed[..., :1], framed[..., -1:]):
            edge.copy_(colour.expand(edge.shape))
    return framed
