"""The embedded shapes world: labelled images without a download.

Image `k` of a class is a function of (seed, split, class, k) alone, whatever else is generated: a long-tailed source
holds the first images of the balanced one, bit for bit. Colour, material, style, place, size and angle are independent
of the class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relatum.config import DataConfig
from relatum.data.shapes_drawing import COLOURS, MATERIALS, NAMES, STYLES, ShapeParams, draw_objects, mix, uniform
from relatum.data.source import ArraySource, ImageSource
from relatum.errors import DataError, suggest

__all__ = [
    "COLOURS",
    "MATERIALS",
    "NAMES",
    "STYLES",
    "ShapeParams",
    "draw_objects",
    "sample_params",
    "shapes_labels",
    "shapes_source",
    "shapes_splits",
]

DEFAULT_CLASSES = 20
TRAIN_IMAGES = 300
TEST_IMAGES = 100
_SPLITS = ("train", "val", "test")
_STYLE_SHARES = (0.6, 0.12, 0.1, 0.1, 0.08)  # in the order of STYLES
_TURN = 0.35  # largest rotation either way, in radians


def sample_params(shape: npt.ArrayLike, index: npt.ArrayLike, *, seed: int = 0, split: str = "train") -> ShapeParams:
    """Draw the parameters of single objects; each row depends on its own shape and index only.

    Args:
        shape: class ids, (N,).
        index: number of each image within its class, (N,).
        seed: seed of the world, 0 or more.
        split: "train", "val" or "test"; their images have nothing in common.

    Returns:
        N rows of parameters.
    """
    shapes, numbers = np.asarray(shape, dtype=np.int64), np.asarray(index, dtype=np.int64)
    stream = mix(mix(np.array([seed], dtype=np.uint64)) + np.uint64(_SPLITS.index(_checked_split(split)) + 1))
    key = mix(mix(stream + shapes.astype(np.uint64)) + numbers.astype(np.uint64))
    size = uniform(key, 4, 0.3, 0.44)
    room = np.maximum(np.float32(0.5) - size * np.float32(0.9), 0)  # keeps nearly all of the object inside
    return ShapeParams(
        shape=shapes,
        colour=(uniform(key, 0) * len(COLOURS)).astype(np.int64),
        material=(uniform(key, 1) * len(MATERIALS)).astype(np.int64),
        style=np.searchsorted(np.cumsum(_STYLE_SHARES)[:-1], uniform(key, 2), side="right").astype(np.int64),
        x=np.float32(0.5) + room * uniform(key, 5, -1, 1),
        y=np.float32(0.5) + room * uniform(key, 6, -1, 1),
        size=size,
        angle=uniform(key, 7, -_TURN, _TURN),
        form=uniform(key, 8),
        key=key,
    )


def shapes_labels(
    counts: int | Sequence[int] | npt.NDArray[np.int64],
    *,
    classes: int | None = None,
    seed: int = 0,
    split: str = "train",
) -> ShapeParams:
    """Return what is drawn in each image of `shapes_source` with the same arguments, in the same order."""
    per_class = _checked_counts(counts, classes)
    shape = np.repeat(np.arange(len(per_class)), per_class)
    index = np.arange(len(shape)) - np.repeat(np.cumsum(per_class) - per_class, per_class)
    return sample_params(shape, index, seed=seed, split=split)


def shapes_source(
    counts: int | Sequence[int] | npt.NDArray[np.int64],
    *,
    classes: int | None = None,
    image_size: int = 32,
    seed: int = 0,
    split: str = "train",
) -> ArraySource:
    """Generate single-object images, sorted by class.

    Args:
        counts: images per class: one number for all, or one for each class.
        classes: number of classes, the first of `NAMES`; default 20, or as many as there are counts.
        image_size: side of the images.
        seed: seed of the world.
        split: "train", "val" or "test".

    Returns:
        A source of (image_size, image_size, 3) uint8 images.
    """
    if image_size < 8:
        raise DataError(f"shapes need images of at least 8 pixels a side to be seen, not {image_size}.")
    params = shapes_labels(counts, classes=classes, seed=seed, split=split)
    images, _ = draw_objects(params, image_size)
    names = NAMES[: len(_checked_counts(counts, classes))]
    return ArraySource(images, params.shape, names, name=f"shapes {split}")


def shapes_splits(config: DataConfig) -> dict[str, ImageSource]:
    """Return the balanced splits of the default world of 20 classes.

    "train" has `config.largest` images of each class (300 when that is 0), from which a long tail may be cut; "test"
    has 100. The world is the same one for every `subset_seed`, as a downloaded data set would be.
    """
    train = shapes_source(config.largest or TRAIN_IMAGES, image_size=config.image_size, split="train")
    test = shapes_source(TEST_IMAGES, image_size=config.image_size, split="test")
    return {"train": train, "test": test}


def _checked_counts(counts: int | Sequence[int] | npt.NDArray[np.int64], classes: int | None) -> npt.NDArray[np.int64]:
    values = np.asarray(counts)
    if values.ndim == 0:
        values = np.full(DEFAULT_CLASSES if classes is None else max(classes, 0), int(values))
    if classes is not None and len(values) != classes:
        raise DataError(f"{len(values)} counts for {classes} shape classes; give one count per class.")
    if not 1 <= len(values) <= len(NAMES):
        raise DataError(f"the shapes world has 1 to {len(NAMES)} classes, not {len(values)}.")
    if values.dtype.kind not in "iu" or values.min() < 0:
        raise DataError("images per shape class must be whole numbers of zero or more.")
    return values.astype(np.int64)


def _checked_split(split: str) -> str:
    if split not in _SPLITS:
        raise DataError(f"unknown split '{split}' of the shapes world; {suggest(split, _SPLITS)}")
    return split
