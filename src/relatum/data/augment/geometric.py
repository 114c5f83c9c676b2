"""Where each pixel comes from: pad-crop, flip, random resized crop, and one affine gather for shear, shift and turn.

All functions take uint8 images (N, 3, H, W) and one set of parameters per image. Pixels from outside the image are
black (0 before normalisation), as in the papers' code and in torchvision's default, unless a `fill` is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from relatum.data.augment.resize import LARGEST, resize_boxes


def remap(images: Tensor, x: Tensor, y: Tensor, fill: Tensor | None = None) -> Tensor:
    """Give each output place the pixel at column `x`, row `y` of its image, or `fill` when that lies outside.

    An integer gather on uint8: for small images several times faster than `grid_sample` on floats.

    Args:
        images: (N, C, H, W) uint8.
        x: source columns, int64, of a shape that broadcasts with `y` to (N, H', W').
        y: source rows, int64.
        fill: colour of places outside, (C,) uint8; default black.

    Returns:
        (N, C, H', W') uint8.
    """
    n, c, h, w = images.shape
    inside = ((y >= 0) & (y < h)) & ((x >= 0) & (x < w))
    index = torch.add(x.clamp(0, w - 1), y.clamp(0, h - 1), alpha=w)
    pixels = images.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand(-1, c, -1))
    pixels = pixels.view(n, c, *index.shape[1:]).mul_(inside.unsqueeze(1))
    return pixels if fill is None else pixels.add_(fill.view(-1, 1, 1) * inside.logical_not().unsqueeze(1))


@dataclass(frozen=True)
class PadCrop:
    """Pad each border with `pad` black pixels, then cut the original size out at a uniform place."""

    pad: int

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the (row, column) at which each crop starts in the padded image, (N, 2) int64."""
        return torch.randint(2 * self.pad + 1, (n, 2), generator=generator)

    def apply(self, images: Tensor, corners: Tensor) -> Tensor:
        """Crop each image of (N, 3, H, W) at its corner; the size stays."""
        h, w = images.shape[-2:]
        start = corners - self.pad
        rows = start[:, 0].view(-1, 1, 1) + torch.arange(h).view(1, -1, 1)
        columns = start[:, 1].view(-1, 1, 1) + torch.arange(w).view(1, 1, -1)
        return remap(images, columns, rows)


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror each image left to right with probability one half."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return which images are mirrored, (N,) bool."""
        return torch.rand(n, generator=generator) < 0.5

    def apply(self, images: Tensor, mirrored: Tensor) -> Tensor:
        """Mirror the chosen images of (N, 3, H, W)."""
        chosen = mirrored.nonzero().squeeze(1)
        return images.index_copy(0, chosen, images.index_select(0, chosen).flip(-1))


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
    h, w = images.shape[-2:]
    columns = torch.arange(w, dtype=torch.float32) - (w - 1) / 2
    rows = (torch.arange(h, dtype=torch.float32) - (h - 1) / 2).unsqueeze(1)
    a, b, c, d, e, f = matrices.to(torch.float32).view(-1, 6, 1, 1).unbind(1)
    x = (a * columns + c) + b * rows + (w - 1) / 2
    y = (d * columns + f) + e * rows + (h - 1) / 2
    return remap(images, x.round_().long(), y.round_().long(), fill)
