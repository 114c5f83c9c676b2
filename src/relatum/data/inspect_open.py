"""Open data for inspection: where training would refuse, read around it and take note."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from relatum.config import DataConfig
from relatum.data.files import shown
from relatum.data.folder import Complain, class_folders, images_below, sorted_names, split_folders
from relatum.data.longtail import make_long_tailed
from relatum.data.source import FileSource, ImageSource
from relatum.data.splits import data_kind, read_class_names, read_splits
from relatum.data.tables import csv_splits, list_splits
from relatum.errors import DataError

EmptyClasses = dict[str, tuple[str, ...]]
"""Of each split, the classes whose folder is there and holds no image."""


@dataclass
class Opened:
    """The splits, and what was wrong on the way to them."""

    splits: dict[str, ImageSource]
    empty: EmptyClasses = field(default_factory=dict)
    bad_rows: list[str] = field(default_factory=list)
    bad_folders: list[str] = field(default_factory=list)


def open_kindly(config: DataConfig) -> Opened:
    """Read the splits; where training would refuse over a class, a row or a link, read around it and take note."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # images listed twice become findings
            opened = Opened(read_splits(config))
    except DataError as refusal:
        opened = _read_around(config, refusal)
    train = make_long_tailed(
        opened.splits["train"], config.long_tail, config.imbalance, config.largest, config.choice, config.subset_seed
    )
    opened.splits = {**opened.splits, "train": train}
    return opened


def _read_around(config: DataConfig, refusal: DataError) -> Opened:
    kind, opened = data_kind(config), Opened({})
    complain = opened.bad_rows.append
    # what is wrong with the file of the names themselves cannot be read around
    names = read_class_names(config.class_names)
    if kind == "folder" and Path(config.root).is_dir():
        opened.splits, opened.empty = _folder_with_gaps(Path(config.root), names or [], opened.bad_folders.append)
        opened.bad_folders = list(dict.fromkeys(opened.bad_folders))  # some folders are looked at twice
    elif kind == "csv":
        opened.splits, _ = csv_splits(config.root, None, names, complain, allow_outside=config.allow_outside)
    elif kind == "list":
        files = (config.train_list, config.val_list, config.test_list)
        opened.splits, _ = list_splits(*files, config.root, names, complain, allow_outside=config.allow_outside)
    if "train" not in opened.splits:
        raise refusal
    return opened


def _folder_with_gaps(root: Path, known: list[str], complain: Complain) -> tuple[dict[str, ImageSource], EmptyClasses]:
    """Read class folders of which some are empty, in one split only, or not among the `known` names."""
    listed = {
        split: {name: images_below(folder / name, complain) for name in sorted_names(class_folders(folder, complain))}
        for split, folder in split_folders(root, complain).items()
    }
    found = dict.fromkeys(name for classes in listed.values() for name in classes)
    names = [*known, *sorted_names([name for name in found if name not in known])]
    ids = {name: k for k, name in enumerate(names)}
    sources: dict[str, ImageSource] = {}
    for split, classes in listed.items():
        paths = [path for images in classes.values() for path in images]
        targets = [ids[name] for name, images in classes.items() for _ in images]
        sources[split] = FileSource(paths, np.array(targets, dtype=np.int64), names, name=f"{root} ({split})")
    empty = {s: tuple(shown(n) for n, images in classes.items() if not images) for s, classes in listed.items()}
    return sources, empty
