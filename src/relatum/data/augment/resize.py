"""Cut a box of its own out of every small image of a batch and resize it: two matrix products for all of them.

Called once per image, torch's antialiased resize spends most of its time outside of arithmetic. A resize is linear
along each axis, though, and for small images the matrices of all lengths of a box fit in one table.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 64  # sides of images; above, most of a matrix would be zeros


def resize_boxes(images: Tensor, boxes: Tensor, size: int, mode: str) -> Tensor:
    """Cut and resize, antialiased; as torch's own resize of each box.

    Up to rounding: torch rounds its weights to integers. Few pixels are two levels off, the others one at most.

    Args:
        images: (N, C, H, W) uint8, sides of at most `LARGEST`.
        boxes: (top, left, height, width) of each image, (N, 4) int64, inside of it.
        size: side of the result, S.
        mode: bilinear or bicubic.

    Returns:
        (N, C, S, S) uint8.
    """
    n, channels, height, width = images.shape
    top, left, h, w = boxes.unbind(1)
    rows = images.reshape(n, channels * height, width).float()
    # As torch does on bytes: along the rows first, and back to bytes in between.
    narrow = _to_levels(rows @ _matrices(left, w, width, size, mode).mT).view(n, channels, height, size)
    done = _matrices(top, h, height, size, mode).unsqueeze(1) @ narrow
    return _to_levels(done).to(torch.uint8)


def _matrices(start: Tensor, length: Tensor, whole: int, size: int, mode: str) -> Tensor:
    """(N, S, whole): from an axis of `whole` pixels to S, of which each image uses `length` pixels from `start` on."""
    place = torch.arange(whole) - start.unsqueeze(1)
    inside = (place >= 0) & (place < length.unsqueeze(1))
    index = place.clamp(0, whole - 1).unsqueeze(1).expand(-1, size, -1)
    return _table(whole, size, mode)[length].gather(2, index) * inside.unsqueeze(1)


@cache
def _table(whole: int, size: int, mode: str) -> Tensor:
    """(whole + 1, S, whole): row c holds the weights with which c pixels become S; its columns from c on are 0."""
    table = torch.zeros(whole + 1, size, whole)
    for length in range(1, whole + 1):
        units = torch.eye(length).view(1, 1, length, length)  # one row for each source pixel
        table[length, :, :length] = functional.interpolate(units, (length, size), mode=mode, antialias=True)[0, 0].T
    return table


def _to_levels(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255)
