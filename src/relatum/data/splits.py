"""From a `DataConfig` to sources: read the data, cut the long tail, hold out a validation split."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from relatum.config import DataConfig, DataKind
from relatum.data.cifar import LAYOUTS, find_cifar, read_cifar
from relatum.data.files import shown
from relatum.data.folder import read_folder
from relatum.data.longtail import make_long_tailed
from relatum.data.source import ImageSource
from relatum.data.table_checks import text_lines
from relatum.data.tables import read_csv, read_lists
from relatum.errors import ConfigError, DataError, suggest

KINDS: tuple[str, ...] = get_args(DataKind)

Source = TypeVar("Source", bound=ImageSource)


def open_splits(config: DataConfig) -> dict[str, ImageSource]:
    """Open the data of `config`.

    The long-tail cut applies to the training split only. A stratified share of what is left is held out as "val" when
    the data has neither a validation nor a test split and `val_fraction` is positive.

    Returns:
        "train" and any of "val" and "test", all with one class map.
    """
    splits = read_splits(config)
    train = make_long_tailed(
        splits["train"], config.long_tail, config.imbalance, config.largest, config.choice, config.subset_seed
    )
    splits = {**splits, "train": train}
    if len(splits) == 1 and config.val_fraction > 0:
        kept, held = stratified_holdout(train, config.val_fraction, config.subset_seed)
        # with one image per class there is nothing to lend: train on all, evaluate on nothing
        splits = {"train": kept, "val": held} if len(held) else {"train": kept}
    return splits


def stratified_holdout(source: Source, fraction: float, seed: int = 0) -> tuple[Source, Source]:
    """Divide `source` into (train, held): `fraction` of each class is held out, drawn from `seed`.

    A class with one image keeps it for training and lends none. A class with two or more keeps at least one and, if
    `fraction` is positive, lends at least one. Both parts keep the order, the class ids and the names of `source`.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"hold-out fraction {fraction} must be at least 0 and below 1.")
    held = np.zeros(len(source), dtype=bool)
    for k, members in enumerate(source.members()):
        count = _held_count(len(members), fraction)
        # a generator per class: adding images to one class does not change the hold-out of the others
        held[np.random.default_rng([seed, k]).permutation(members)[:count]] = True
    return source.subset(np.flatnonzero(~held)), source.subset(np.flatnonzero(held))


def _held_count(images: int, fraction: float) -> int:
    if images < 2 or fraction == 0:
        return 0
    return min(max(round(images * fraction), 1), images - 1)


def read_splits(config: DataConfig) -> dict[str, ImageSource]:
    """Read the data as it lies there: no long-tail cut, no hold-out."""
    kind = data_kind(config)
    names = read_class_names(config.class_names)
    if kind == "shapes":
        return _read_shapes(config)
    if kind == "list":
        return _read_lists(config, names)
    if config.train_list or config.val_list or config.test_list:
        raise ConfigError(f"train_list, val_list and test_list belong to --data.kind list, not to {kind}.")
    if not config.root:
        raise DataError("no data given: name the folder or CSV file of your images with --data.root PATH.")
    if kind == "csv":
        return read_csv(config.root, class_names=names, allow_outside=config.allow_outside)
    if kind in LAYOUTS:
        return read_cifar(config.root, kind, names)
    return read_folder(config.root, names)


def data_kind(config: DataConfig) -> str:
    """Return the layout of the data; "auto" is resolved by looking at it."""
    if config.kind not in KINDS:
        raise ConfigError(f"unknown data kind '{config.kind}'; {suggest(config.kind, KINDS)}")
    if config.kind != "auto":
        return config.kind
    if config.train_list:
        return "list"
    root = Path(config.root)
    if config.root and root.is_file():
        if root.suffix.lower() == ".csv":
            return "csv"
        raise DataError(
            f"{root} is not a CSV file; for `path label` lists use --data.kind list --data.train-list {root}."
        )
    cifars = [which for which in LAYOUTS if config.root and find_cifar(root, which) is not None]
    if len(cifars) > 1:
        raise DataError(f"{root} holds both {' and '.join(cifars)}; choose one with --data.kind.")
    return cifars[0] if cifars else "folder"


def read_class_names(path: str) -> list[str] | None:
    """Read a file with one class name per line; None if there is no such file to read (`path` is empty)."""
    if not path:
        return None
    lines = [line.strip() for line in text_lines(Path(path), "class names ")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines or "" in lines:
        at = lines.index("") + 1 if lines else 1
        raise DataError(f"{path}, line {at} is empty; give one class name per line, in the order of the class ids.")
    seen: dict[str, int] = {}
    for number, name in enumerate(lines, 1):
        if seen.setdefault(name, number) != number:
            raise DataError(
                f"{path}, line {number}: the class '{shown(name)}' is in line {seen[name]} already; every class needs "
                "a name of its own."
            )
    return lines


def _read_lists(config: DataConfig, names: list[str] | None) -> dict[str, ImageSource]:
    if not config.train_list:
        raise DataError("no training list given: name it with --data.train-list PATH (lines of `path label`).")
    lists = config.train_list, config.val_list, config.test_list
    return read_lists(*lists, config.root, names, allow_outside=config.allow_outside)


def _read_shapes(config: DataConfig) -> dict[str, ImageSource]:
    if config.root or config.class_names:
        raise ConfigError("the shapes world is generated and names its own classes; leave root and class_names empty.")
    from relatum.data.shapes import shapes_splits

    return shapes_splits(config)
