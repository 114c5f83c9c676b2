"""Images to measure on where the user gives none: noise in the layout of CIFAR-100, which all of relatum reads."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relatum.config import DataConfig, RunConfig
from relatum.data.cifar import LAYOUTS
from relatum.errors import ConfigError

SIDE, CLASSES = 32, 100
TRAIN_IMAGES, TEST_IMAGES = 10_000, 2_000
_IMBALANCE = 100.0


def needs_images(data: DataConfig) -> bool:
    """Whether the settings name no data."""
    return not data.root and not data.train_list and data.kind != "shapes"


def with_images(config: RunConfig, folder: Path) -> RunConfig:
    """Return `config` with the images that `write_images` left in `folder` as its data.

    Raises:
        ConfigError: it wants images of another size.
    """
    data = config.data
    if data.image_size != SIDE or config.pretrain.image_size not in (0, SIDE):
        size = config.pretrain.image_size if data.image_size == SIDE else data.image_size
        raise ConfigError(
            f"generated images have {SIDE} pixels a side, and this recipe wants {size}; give real ones with "
            f"--data.root, or set --data.image-size {SIDE}."
        )
    lists = {"train_list": "", "val_list": "", "test_list": "", "class_names": ""}
    data = replace(data, kind="cifar100", root=str(folder), long_tail="none", largest=0, **lists)  # type: ignore[arg-type]
    return replace(config, data=data, pretrain=replace(config.pretrain, root="", train_list="", subset="same"))


def write_images(folder: Path, train: int = TRAIN_IMAGES, test: int = TEST_IMAGES) -> None:
    """Write noise as CIFAR-100 pickles into `folder`.

    Args:
        folder: exists.
        train: about how many training images; their classes have a long tail, 100 to 1.
        test: how many test images.
    """
    layout = LAYOUTS["cifar100"]
    place = folder / layout.folder
    place.mkdir()
    share = _IMBALANCE ** -(np.arange(CLASSES) / (CLASSES - 1))
    counts = np.maximum(np.round(train * share / share.sum()), 1).astype(np.int64)
    splits = {layout.train[0]: np.repeat(np.arange(CLASSES), counts), layout.test[0]: np.arange(test) % CLASSES}
    rng = np.random.default_rng(0)
    for name, labels in splits.items():
        _write(place / name, {"data": _noise(rng, len(labels)), layout.labels: labels.tolist()})
    _write(place / layout.meta, {layout.names: [str(k) for k in range(CLASSES)]})


def _noise(rng: np.random.Generator, images: int) -> npt.NDArray[np.uint8]:
    return rng.integers(0, 256, (images, 3 * SIDE * SIDE), dtype=np.uint8)


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))
