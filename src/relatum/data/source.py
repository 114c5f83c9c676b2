"""Sources: samples, their class ids and the class names, whatever they were read from.

The order of `class_names` is the class map: class id k is `class_names[k]`, in every split and every subset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from relatum.data.decode import decode_image, to_uint8
from relatum.data.files import shown
from relatum.data.inside import require_inside
from relatum.errors import DataError
from relatum.prior import ClassPrior

CLASS_LIMIT = 1_000_000
"""A label from here on is taken for a mistake: the class names alone would fill the memory."""


class LabelError(DataError):
    """An item whose own label is not the one it was declared with: wrong data, however sound its image is."""


class ImageSource(ABC):
    """A list of labelled images that are loaded one by one.

    Args:
        targets: class id of each image, (N,), whole numbers from 0 to K - 1.
        class_names: name of each class id, K of them; default "0", "1", ... up to the largest target.
        name: what to call this source in messages.

    Attributes:
        targets: (N,) int64.
        class_names: control characters in them are escaped, since they end up on terminals and pages.
        positions: place of each image in the source it was first read into, (N,) int64; survives `subset`.
    """

    def __init__(self, targets: npt.ArrayLike, class_names: Sequence[str] | None = None, name: str = "data") -> None:
        name = shown(name)
        labels = _as_labels(targets, name)
        if class_names is None:
            class_names = [str(k) for k in range(_largest_label(labels, name) + 1)]
        self.name = name
        self.class_names: tuple[str, ...] = _checked_names(class_names, name)
        self.targets = labels
        self.positions: npt.NDArray[np.int64] = np.arange(len(labels), dtype=np.int64)
        self._check_range()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_classes(self) -> int:
        """K, the number of classes, absent ones included."""
        return len(self.class_names)

    @abstractmethod
    def load(self, index: int) -> npt.NDArray[np.uint8]:
        """Return image `index` as (H, W, 3) uint8 RGB, or raise `DataError` that names it."""

    @abstractmethod
    def _take(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return a source of the same kind with the images `indices`; targets and names are cared for by `subset`."""

    def describe(self, index: int) -> str:
        """Return words that let a person find image `index`."""
        return f"item {int(self.positions[index])} of {self.name}"

    def subset(self, indices: npt.ArrayLike) -> Self:
        """Return the images `indices` (n,), in that order, with the same class ids and names.

        A boolean mask (N,) is taken as the positions at which it is true.
        """
        chosen = np.asarray(indices)
        if chosen.dtype == bool and chosen.shape == (len(self),):
            chosen = np.flatnonzero(chosen)
        if chosen.size and (chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= len(self)):
            raise DataError(f"subset of {self.name}: indices must be whole numbers from 0 to {len(self) - 1}.")
        chosen = chosen.astype(np.int64).reshape(-1)
        taken = self._take(chosen)
        taken.positions = self.positions[chosen]
        return taken

    def members(self) -> list[npt.NDArray[np.int64]]:
        """Return the indices of each class's images, K arrays in rising order; empty for absent classes."""
        counts = np.bincount(self.targets, minlength=self.num_classes)
        return np.split(np.argsort(self.targets, kind="stable"), np.cumsum(counts)[:-1])

    def prior(self) -> ClassPrior:
        """Count the classes."""
        return ClassPrior.from_targets(self.targets, names=self.class_names)

    def _check_range(self) -> None:
        bad = np.flatnonzero((self.targets < 0) | (self.targets >= self.num_classes))
        if bad.size:
            first = int(bad[0])
            raise DataError(
                f"item {first} of {self.name} has label {int(self.targets[first])}, which is out of range for "
                f"{self.num_classes} classes; labels must be 0 to {self.num_classes - 1}. "
                "Correct the label or the list of class names."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, images={len(self)}, classes={self.num_classes})"


class FileSource(ImageSource):
    """Images in files, decoded when they are asked for.

    Args:
        paths: image files, N of them. Not looked at before `load`: lists may hold hundreds of thousands.
        targets: class ids, (N,).
        class_names: name of each class id.
        name: what to call this source in messages.
        inside: folder that images may not leave, also not by links; empty lets them lie anywhere.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        targets: npt.ArrayLike,
        class_names: Sequence[str] | None = None,
        name: str = "files",
        inside: str = "",
    ) -> None:
        super().__init__(targets, class_names, name)
        self.paths: tuple[str, ...] = tuple(map(str, paths))
        self.inside = inside
        _check_lengths(len(self.paths), len(self), name)

    def load(self, index: int) -> npt.NDArray[np.uint8]:
        """Decode image `index` fully: (H, W, 3) uint8 RGB."""
        if self.inside:
            require_inside(self.paths[index], self.inside)
        return decode_image(self.paths[index])

    def describe(self, index: int) -> str:
        """Return the path of image `index`."""
        return self.paths[index]

    def _take(self, indices: npt.NDArray[np.int64]) -> Self:
        paths = [self.paths[i] for i in indices.tolist()]
        return type(self)(paths, self.targets[indices], self.class_names, self.name, self.inside)


class ArraySource(ImageSource):
    """Images of one size in memory.

    Args:
        images: (N, H, W, 3) uint8 RGB.
        targets: class ids, (N,).
        class_names: name of each class id.
        name: what to call this source in messages.
    """

    def __init__(
        self,
        images: npt.ArrayLike,
        targets: npt.ArrayLike,
        class_names: Sequence[str] | None = None,
        name: str = "arrays",
    ) -> None:
        super().__init__(targets, class_names, name)
        self.images: npt.NDArray[np.uint8] = _checked_images(images, name)
        _check_lengths(len(self.images), len(self), name)

    def load(self, index: int) -> npt.NDArray[np.uint8]:
        """Return image `index`: (H, W, 3) uint8 RGB, a view."""
        return self.images[index]

    def _take(self, indices: npt.NDArray[np.int64]) -> Self:
        return type(self)(self.images[indices], self.targets[indices], self.class_names, self.name)


class DatasetSource(ImageSource):
    """Any map-style dataset of (image, label) items.

    The image may be a PIL image, a uint8 array (H, W, 3) or (H, W), or a tensor (3, H, W) or (1, H, W) of uint8 or of
    floats in [0, 1]. Leave augmentation and normalisation out of the dataset's own transform: they are applied here.

    Args:
        dataset: has `len()` and integer indexing.
        targets: class ids, (N,); default `dataset.targets`, and then every item's own label must agree with it.
        class_names: name of each class id; default `dataset.classes` where there is one.
        name: what to call this source in messages; default the dataset's type.
    """

    def __init__(
        self,
        dataset: Any,
        targets: npt.ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        name = type(dataset).__name__ if name is None else name
        self._labels_given = targets is not None
        if targets is None:
            targets = getattr(dataset, "targets", None)
        if targets is None:
            raise DataError(f"{name} has no `targets`; give the class id of each item as targets=[...].")
        if class_names is None:
            class_names = getattr(dataset, "classes", None)
        super().__init__(targets, class_names, name)
        _check_lengths(len(dataset), len(self), name)
        self.dataset = dataset

    def load(self, index: int) -> npt.NDArray[np.uint8]:
        """Fetch item `index` and return its image as (H, W, 3) uint8 RGB."""
        item = self.dataset[int(self.positions[index])]
        where = self.describe(index)
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise DataError(f"{where} is a {type(item).__name__}; items must be (image, label) pairs.")
        if not self._labels_given and int(item[1]) != int(self.targets[index]):
            raise LabelError(
                f"{where} has label {int(item[1])} but `targets` says {int(self.targets[index])}; "
                "give the labels that hold as targets=[...]."
            )
        return to_uint8(item[0], where)

    def _take(self, indices: npt.NDArray[np.int64]) -> Self:
        taken = object.__new__(type(self))
        taken.__dict__.update(self.__dict__, targets=self.targets[indices])
        return taken


def from_arrays(images: npt.ArrayLike, targets: npt.ArrayLike, class_names: Sequence[str] | None = None) -> ArraySource:
    """Make a source of `images` (N, H, W, 3) uint8 and `targets` (N,)."""
    return ArraySource(images, targets, class_names)


def from_dataset(
    dataset: Any, targets: npt.ArrayLike | None = None, class_names: Sequence[str] | None = None
) -> DatasetSource:
    """Make a source of a map-style dataset of (image, label) items; see `DatasetSource`."""
    return DatasetSource(dataset, targets, class_names)


def _as_labels(targets: npt.ArrayLike, name: str) -> npt.NDArray[np.int64]:
    labels = np.asarray(targets)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise DataError(
            f"targets of {name} must be one whole number per image, not {labels.dtype} of shape {labels.shape}; "
            "turn class names into class ids first."
        )
    return labels.astype(np.int64)


def _largest_label(labels: npt.NDArray[np.int64], name: str) -> int:
    largest = int(labels.max(initial=0))
    if largest >= CLASS_LIMIT:
        raise DataError(
            f"item {int(labels.argmax())} of {name} has label {largest}; labels are class ids from 0 on, one for each "
            "class. Number the classes 0, 1, 2, ..."
        )
    return largest


def _checked_names(class_names: Sequence[str], name: str) -> tuple[str, ...]:
    names = tuple(map(shown, class_names))
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"class name '{twice}' of {name} occurs twice; every class needs a name of its own.")
    return names


def _checked_images(images: npt.ArrayLike, name: str) -> npt.NDArray[np.uint8]:
    array = np.asarray(images)
    if array.dtype != np.uint8:
        raise DataError(f"images of {name} must be uint8 with values 0 to 255, not {array.dtype}; convert them first.")
    if array.ndim != 4 or array.shape[3] != 3:
        raise DataError(
            f"images of {name} must be (N, H, W, 3), not {array.shape}; "
            "move the channels last, and repeat a single grey channel three times."
        )
    return array


def _check_lengths(images: int, targets: int, name: str) -> None:
    if images != targets:
        raise DataError(
            f"{name} has {images} images but {targets} targets; item {min(images, targets)} lacks its partner. "
            "Give exactly one target per image."
        )
