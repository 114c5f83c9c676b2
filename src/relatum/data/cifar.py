"""CIFAR-10 and CIFAR-100 in the layout torchvision downloads, read without running any code from the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relatum.data.pickles import load_pickle
from relatum.data.source import ArraySource, ImageSource
from relatum.errors import ConfigError, DataError, suggest


class _Layout(NamedTuple):
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str
    classes: int


LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        ("test_batch",),
        "batches.meta",
        "labels",
        "label_names",
        10,
    ),
    "cifar100": _Layout("cifar-100-python", ("train",), ("test",), "meta", "fine_labels", "fine_label_names", 100),
}


def read_cifar(root: str | Path, which: str, class_names: Sequence[str] | None = None) -> dict[str, ImageSource]:
    """Read CIFAR pickles; partial files are fine and there is no checksum.

    Args:
        root: the folder `cifar-100-python` or `cifar-10-batches-py`, or the folder that holds it.
        which: "cifar10" or "cifar100" (fine labels).
        class_names: name of each class id; default the names in the meta file, else the numbers.

    Returns:
        "train", and "test" if its file is there; images in memory, (N, 32, 32, 3) uint8, in file order.
    """
    if which not in LAYOUTS:
        raise ConfigError(f"unknown CIFAR '{which}'; {suggest(which, LAYOUTS)}")
    folder = find_cifar(root, which)
    layout = LAYOUTS[which]
    if folder is None:
        raise DataError(
            f"no {which} in {root}: expected {layout.folder}/{layout.train[0]}. "
            f"Give the folder that holds {layout.folder}, as torchvision unpacks it."
        )
    names = class_names if class_names is not None else _class_names(folder, layout)
    splits = {"train": layout.train, "test": layout.test}
    found = {split: [folder / f for f in files if (folder / f).is_file()] for split, files in splits.items()}
    return {split: _read_split(files, layout, names, f"{which} {split}") for split, files in found.items() if files}


def find_cifar(root: str | Path, which: str) -> Path | None:
    """Return the folder with the training pickles of `which` in or at `root`, or None."""
    layout = LAYOUTS[which]
    for folder in (Path(root) / layout.folder, Path(root)):
        if any((folder / f).is_file() for f in layout.train):
            return folder
    return None


def _class_names(folder: Path, layout: _Layout) -> list[str]:
    meta = folder / layout.meta
    if not meta.is_file():
        return [str(k) for k in range(layout.classes)]
    content = load_pickle(meta)
    if not isinstance(content, dict) or layout.names not in content:
        raise DataError(f"{meta} has no '{layout.names}'; unpack the CIFAR archive again.")
    names = content[layout.names]
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise DataError(f"{meta}: '{layout.names}' is not a list of names; unpack the CIFAR archive again.")
    return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]


def _read_split(files: list[Path], layout: _Layout, names: Sequence[str], name: str) -> ArraySource:
    batches = [_read_batch(file, layout) for file in files]
    images = np.concatenate([images for images, _ in batches])
    return ArraySource(images, np.concatenate([labels for _, labels in batches]), names, name=name)


def _read_batch(file: Path, layout: _Layout) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = load_pickle(file)
    if not isinstance(content, dict) or "data" not in content or layout.labels not in content:
        raise DataError(f"{file} has no 'data' and '{layout.labels}'; is it a CIFAR file of the right kind?")
    data, labels = content["data"], _labels(content[layout.labels])
    if labels is None:
        raise DataError(f"{file}: '{layout.labels}' is not a list of class ids; unpack the CIFAR archive again.")
    if not isinstance(data, np.ndarray):
        raise DataError(f"{file}: 'data' is not an array; unpack the CIFAR archive again.")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape != (len(labels), 3072):
        raise DataError(f"{file}: data is {data.dtype} {data.shape} for {len(labels)} labels, not uint8 (N, 3072).")
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _labels(found: object) -> npt.NDArray[np.int64] | None:
    """Return a flat list of numbers, or an array of one dimension, as an array; None for anything else."""
    if isinstance(found, list) and all(isinstance(label, (int, float)) for label in found):
        found = np.asarray(found)
    return found if isinstance(found, np.ndarray) and found.ndim == 1 else None
