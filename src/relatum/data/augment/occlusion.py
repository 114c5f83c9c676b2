"""Parts of an image hidden: Cutout and random erasing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def _box_mask(boxes: Tensor, h: int, w: int) -> Tensor:
    """Mark the inside of each (top, left, height, width) of `boxes` (N, 4), cut at the borders: (N, 1, h, w) bool."""
    top, left, height, width = boxes.unsqueeze(2).unbind(1)
    rows, columns = torch.arange(h), torch.arange(w)
    in_rows = (rows >= top) & (rows < top + height)
    in_columns = (columns >= left) & (columns < left + width)
    return (in_rows[:, :, None] & in_columns[:, None, :]).unsqueeze(1)


@dataclass(frozen=True)
class Cutout:
    """One square black hole per image, its centre uniform over the image, cut at the borders.

    The hole is 0 before normalisation, as in the papers' released code (not the mean, which would be 0 after it).
    """

    side: int

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Return the (row, column) of each centre, (N, 2) int64."""
        rows = torch.randint(height, (n,), generator=generator)
        columns = torch.randint(width, (n,), generator=generator)
        return torch.stack([rows, columns], dim=1)

    def apply(self, images: Tensor, centres: Tensor) -> Tensor:
        """Cut the holes into (N, 3, H, W) uint8."""
        boxes = torch.cat([centres - self.side // 2, torch.full_like(centres, self.side)], dim=1)
        hole = _box_mask(boxes, *images.shape[-2:])
        return images * hole.logical_not_()


@dataclass(frozen=True)
class RandomErasing:
    """With probability `chance` fill one box of each normalised image with standard normal noise, pixel by pixel.

    Boxes follow timm's rule: area 0.02 to 1/3 of the image, aspect 0.3 to 3.3, up to ten tries for one that fits. This
    is timm's mode "pixel" with a count of one, which DeiT uses with a chance of 0.25.
    """

    chance: float
    area: tuple[float, float] = (0.02, 1 / 3)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)
    attempts: int = 10

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Return (top, left, height, width) of each box, (N, 4) int64; height 0 where nothing is erased."""
        shape = (n, self.attempts)
        erased = torch.rand(n, generator=generator) < self.chance
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        area = torch.empty(shape, dtype=torch.float64).uniform_(*self.area, generator=generator) * height * width
        aspect = torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=generator).exp()
        h, w = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
        fits = (h < height) & (w < width)
        first = fits.long().argmax(1, keepdim=True)
        h, w = h.gather(1, first)[:, 0] * (erased & fits.any(1)), w.gather(1, first)[:, 0].clamp(max=width)
        place = torch.rand((n, 2), dtype=torch.float64, generator=generator)
        top, left = (place[:, 0] * (height - h + 1)).long(), (place[:, 1] * (width - w + 1)).long()
        return torch.stack([top, left, h, w], dim=1)

    def apply(self, images: Tensor, boxes: Tensor, generator: torch.Generator) -> Tensor:
        """Fill the boxes of (N, 3, H, W) float images; the noise comes from `generator`."""
        hidden = _box_mask(boxes, *images.shape[-2:]).expand_as(images)
        noise = torch.randn(int(hidden.sum()), generator=generator, dtype=images.dtype)
        return images.masked_scatter(hidden, noise)
