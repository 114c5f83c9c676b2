"""Resize small images by two matrix products, a whole batch at once, each of them whole or by a box of its own.

Called once per image, torch's antialiased resize spends most of its time outside of arithmetic, and for a batch of
images it takes twice the time of the products. A resize is linear along each axis, though, and for small images the
matrices of all lengths of a box fit in one table.
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
    # Colours side by side in each row: so one product along the columns does for all of them.
    rows = images.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    # As torch does on bytes: along the rows first, and back to bytes in between.
    with _exact():
        narrow = _to_levels(rows.view(n, height * channels, width) @ _matrices(left, w, width, size, mode).mT)
        done = _matrices(top, h, height, size, mode) @ narrow.view(n, height, channels * size)
    turned = _to_levels(done).view(n, size, channels, size).transpose(1, 2)
    return turned.to(torch.uint8, memory_format=torch.contiguous_format)


def resize_whole(images: Tensor, size: int) -> Tensor:
    """Resize float images (N, C, H, W) to (N, C, S, S): bilinear, antialiased, as torch's own resize."""
    height, width = images.shape[-2:]
    if max(height, width) > LARGEST:
        return functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    with _exact():
        return _weights(height, size, "bilinear") @ (images @ _weights(width, size, "bilinear").T)


def _exact() -> torch.autocast:
    """Whoever draws batches inside of autocast would otherwise multiply pixels by weights of eight bits."""
    return torch.autocast("cpu", enabled=False)  # anew each time: it remembers what to go back to


def _matrices(start: Tensor, length: Tensor, whole: int, size: int, mode: str) -> Tensor:
    """(N, S, whole): from an axis of `whole` pixels to S, of which each image uses `length` pixels from `start` on."""
    return _table(whole, size, mode)[length, whole - start]


@cache
def _table(whole: int, size: int, mode: str) -> Tensor:
    """(whole + 1, whole + 1, S, whole): at [c, whole - s] the weights by which c pixels from s on become S.

    The second axis is a window that slides over zeros, the weights of c, and zeros again: it takes no memory.
    """
    padded = torch.zeros(whole + 1, size, 2 * whole)
    for length in range(1, whole + 1):
        padded[length, :, whole : whole + length] = _weights(length, size, mode)
    return padded.unfold(2, whole, 1).transpose(1, 2)


@cache
def _weights(length: int, size: int, mode: str) -> Tensor:
    """(S, length): from an axis of `length` pixels to S."""
    units = torch.eye(length).view(1, 1, length, length)  # one row for each source pixel
    return functional.interpolate(units, (length, size), mode=mode, antialias=True)[0, 0].T.contiguous()


def _to_levels(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255)
