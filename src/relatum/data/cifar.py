"""CIFAR-10 and CIFAR-100 in the layout torchvision downloads, read without running any code from the files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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

# Everything a pickled dictionary of arrays, lists and strings needs, under the module names of old and new NumPy.
_ALLOWED = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype")}


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


def load_pickle(path: str | Path) -> Any:
    """Unpickle plain containers, strings, numbers and NumPy arrays; anything else in the file is refused."""
    try:
        return _PlainUnpickler(io.BytesIO(Path(path).read_bytes()), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"cannot read {path}: {error}. Unpack the CIFAR archive again.") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"the pickle asks for {module}.{name}, which is not data; refused, since it could run code. "
                "Get the file from its official source."
            )
        return super().find_class(module, name)


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stand in for `_codecs.encode`, by which new Python writes bytes into old pickles; other codecs are refused."""
    if encoding not in ("latin1", "latin-1", "iso-8859-1"):
        raise ValueError(f"codec {encoding} in a pickle")
    return text.encode("latin1")


def _class_names(folder: Path, layout: _Layout) -> list[str]:
    meta = folder / layout.meta
    if not meta.is_file():
        return [str(k) for k in range(layout.classes)]
    content = load_pickle(meta)
    if not isinstance(content, dict) or layout.names not in content:
        raise DataError(f"{meta} has no '{layout.names}'; unpack the CIFAR archive again.")
    return [str(name) for name in content[layout.names]]


def _read_split(files: list[Path], layout: _Layout, names: Sequence[str], name: str) -> ArraySource:
    batches = [_read_batch(file, layout) for file in files]
    images = np.concatenate([images for images, _ in batches])
    return ArraySource(images, np.concatenate([labels for _, labels in batches]), names, name=name)


def _read_batch(file: Path, layout: _Layout) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = load_pickle(file)
    if not isinstance(content, dict) or "data" not in content or layout.labels not in content:
        raise DataError(f"{file} has no 'data' and '{layout.labels}'; is it a CIFAR file of the right kind?")
    data, labels = np.asarray(content["data"]), np.asarray(content[layout.labels])
    if labels.ndim != 1:
        raise DataError(f"{file}: '{layout.labels}' is not a list of class ids; unpack the CIFAR archive again.")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape != (len(labels), 3072):
        raise DataError(f"{file}: data is {data.dtype} {data.shape} for {len(labels)} labels, not uint8 (N, 3072).")
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels
