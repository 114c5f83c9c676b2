"""What `scale.py` measures: lists of image paths, and the work that is done on them before any image is decoded.

Every work takes the list's path and returns a check, called when the clock has stopped, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relatum.config import DataConfig
from relatum.data.inspect import inspect_data
from relatum.data.loaders import TrainLoader, build_loaders
from relatum.data.samplers import SAMPLERS, build_sampler
from relatum.train.fingerprint import fingerprint

CLASSES, EPOCHS, EPOCH = 10_000, 10, 3
Check = Callable[[], None] | None
Work = Callable[[str], Check]


def class_counts(entries: int, classes: int) -> npt.NDArray[np.int64]:
    """Images of each class: one each, and the rest in proportion to 1 / rank (Pareto), (classes,)."""
    share = 1 / np.arange(1, classes + 1)
    counts = 1 + np.floor((entries - classes) * share / share.sum()).astype(np.int64)
    counts[0] += entries - counts.sum()
    return counts


def write_list(path: Path, entries: int, classes: int = CLASSES) -> None:
    """Write a `path label` list in random order, and its labels as an array beside it (`targets_of`)."""
    classes = min(classes, entries)
    labels = np.repeat(np.arange(classes), class_counts(entries, classes))
    np.random.default_rng(0).shuffle(labels)
    np.save(path.with_suffix(".npy"), labels)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(
            f"train_256/order_{k % 120:03d}/species_{k:05d}/{i:08x}-observation-{i % 977:03d}.jpg {k}\n"
            for i, k in enumerate(labels.tolist())
        )


def targets_of(path: str) -> npt.NDArray[np.int64]:
    """Labels of a list that `write_list` wrote, without reading its lines."""
    labels: npt.NDArray[np.int64] = np.load(Path(path).with_suffix(".npy"))
    return labels


def config_of(path: str, **more: object) -> DataConfig:
    """Settings of a training on the list, with images that are too many and too large for memory."""
    return DataConfig(kind="list", train_list=path, image_size=224, memory="never", **more)  # type: ignore[arg-type]


def start_up(path: str) -> Check:
    """From the settings to the samples of the first batch."""
    loaders = build_loaders(config_of(path), epochs=EPOCHS)
    fingerprint(loaders)
    next(iter(loaders.train.keys(0)))
    return None


def epoch_order(path: str, **settings: object) -> Check:
    """One sampler and its order of an epoch; the list itself is not read."""
    targets = targets_of(path)
    sampler = build_sampler(config_of(path, **settings), targets, int(targets.max()) + 1, epochs=EPOCHS)
    order = sampler.indices(EPOCH)
    return partial(_check_order, order, len(targets))


def inspect(path: str) -> Check:
    """Counts, findings and advice; no image is decoded."""
    inspect_data(config_of(path), limit=0).to_dict()
    return None


def resume(path: str) -> Check:
    """Start again in the middle of an epoch, up to the samples of the next batch."""
    train = build_loaders(config_of(path), epochs=EPOCHS).train
    middle = len(train) // 2
    return partial(_check_resumed, train, middle, next(iter(train.keys(EPOCH, middle))))


def works() -> dict[str, Work]:
    """All that is measured, by name."""
    orders: dict[str, Work] = {f"order: {name}": partial(epoch_order, sampler=name) for name in SAMPLERS}
    orders["order: deferred (drs)"] = partial(epoch_order, drs_start=EPOCH / EPOCHS)
    return {"start-up to the first batch": start_up, **orders, "inspect, not decoding": inspect, "resume": resume}


def _check_order(order: npt.NDArray[np.int64], samples: int) -> None:
    if len(order) < samples or order.min() < 0 or order.max() >= samples:
        raise AssertionError(f"an order of {len(order)} places does not fit {samples} samples")


def _check_resumed(train: TrainLoader, middle: int, resumed: Sequence[object]) -> None:
    uninterrupted = next(islice(iter(train.keys(EPOCH)), middle, None))
    if resumed != uninterrupted:
        raise AssertionError("the resumed epoch goes on with other samples than the uninterrupted one")
