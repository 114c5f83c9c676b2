"""Small images live in memory as one uint8 tensor: when, and how they get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from relatum.config import DataConfig
from relatum.data.preprocess import SMALL_IMAGE, fit_square, to_tensor
from relatum.data.source import ArraySource, FileSource, ImageSource

MEMORY_LIMIT = 2 * 1024**3
_BLOCK = 64
_LOOKED_AT = 8

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) while images are decoded into memory."""


def lives_in_memory(source: ImageSource, config: DataConfig, images: int, *, full_resolution: bool = False) -> bool:
    """Decide whether `source` is decoded once into memory or read again and again by loader processes.

    With `memory` auto: when the images are small and those of all splits fit into 2 GB. An augmentation that crops from
    the full resolution would see less of larger images, so for it they must have the right size already.

    Args:
        source: the images.
        config: the data settings.
        images: number of images of all splits together.
        full_resolution: the training augmentation crops from the image as it is on disk.
    """
    if config.memory != "auto":
        return config.memory == "always"
    size = config.image_size
    if size > SMALL_IMAGE or images * 3 * size * size > MEMORY_LIMIT:
        return False
    return not full_resolution or all(shape == (size, size) for shape in _shapes(source))


def stored_side(source: ImageSource, size: int, *, full_resolution: bool = False) -> int:
    """Return the side in which training images are kept in memory: `size`, or their own where a crop enlarges them.

    An augmentation that crops from the full resolution enlarges its crop itself, so images smaller than `size` stay
    small: 50,000 images of 32 pixels are 150 MB, at 224 pixels they would be 7.5 GB.
    """
    if not full_resolution:
        return size
    return min(size, max(min(shape) for shape in _shapes(source)))


def held_smaller(source: ImageSource, size: int) -> bool:
    """Whether `source` has its images in memory already, and smaller than a copy of the side `size` would be."""
    return isinstance(source, ArraySource) and max(source.images.shape[1:3]) < size


def _shapes(source: ImageSource) -> Iterator[tuple[int, int]]:
    """Yield the heights and widths of images: of files, some are looked at, spread over the source."""
    if isinstance(source, ArraySource):
        yield source.images.shape[1:3]
        return
    for place in np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int)):
        yield source.load(int(place)).shape[:2]


def decode_all(source: ImageSource, size: int, resize: int, threads: int, progress: Progress | None = None) -> Tensor:
    """Return all images as (N, 3, size, size) uint8, resized and centre-cropped where they have another size.

    Files are decoded in `threads` threads (the decoders release the interpreter lock); other sources, which may be a
    user's own code, one after the other.
    """
    if isinstance(source, ArraySource) and source.images.shape[1:3] == (size, size):
        return torch.from_numpy(np.ascontiguousarray(source.images.transpose(0, 3, 1, 2)))
    images = torch.empty((len(source), 3, size, size), dtype=torch.uint8)

    def fill(block: range) -> int:
        for index in block:
            images[index] = fit_square(to_tensor(source.load(index)), size, resize)
        return len(block)

    blocks = [range(first, min(first + _BLOCK, len(source))) for first in range(0, len(source), _BLOCK)]
    done = 0
    for count in _run(fill, blocks, threads if isinstance(source, FileSource) else 1):
        done += count
        if progress is not None:
            progress(done, len(source))
    return images


def _run(fill: Callable[[range], int], blocks: list[range], threads: int) -> Iterator[int]:
    if threads < 2:
        yield from map(fill, blocks)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(fill, blocks)
