"""Inspect image data before training: how many, how unequal, how rare, what is broken, what is there twice.

Inspection is kinder than training: an empty class folder or an unreadable file becomes a finding, not an error.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from relatum.config import DataConfig
from relatum.data.advice import Finding, advice, find_problems
from relatum.data.folder import look_alikes
from relatum.data.inspect_files import (
    Duplicate,
    ImageNote,
    Place,
    Probe,
    Sizes,
    odd_shapes,
    probe_source,
    same_content,
    sizes_of,
    spread,
    tiny_images,
)
from relatum.data.inspect_open import EmptyClasses, open_kindly
from relatum.data.source import FileSource, ImageSource
from relatum.data.table_checks import repeated_paths
from relatum.errors import ConfigError
from relatum.prior import ClassPrior

RARE = 20
"""A class with fewer images than this is rare: the few-shot group of the standard rule."""
_NAMING_OPTIONS = (
    "kind", "root", "train_list", "val_list", "test_list", "class_names",
    "long_tail", "imbalance", "largest", "choice", "subset_seed",
)  # fmt: skip


@dataclass(frozen=True)
class SplitInspection:
    """What one split holds.

    Args:
        name: train, val or test.
        counts: images of each class, all classes of the data set included, unreadable files counted.
        checked: number of images that were read and decoded (all, unless a limit was set).
        empty_classes: classes whose folder is there but holds no image.
        missing_classes: classes that the data set has and this split lacks altogether.
        unreadable: images that cannot be decoded, with the reason.
        sizes: of the readable images; None if there is none.
        tiny: images with a side of fewer than 16 pixels.
        odd_shapes: images far wider or far taller than the others.
        remarks: sound images of which something is to be said, by kind: see `relatum.data.inspect_files.REMARKS`.
    """

    name: str
    counts: dict[str, int]
    checked: int
    empty_classes: tuple[str, ...]
    missing_classes: tuple[str, ...]
    unreadable: tuple[ImageNote, ...]
    sizes: Sizes | None
    tiny: tuple[ImageNote, ...]
    odd_shapes: tuple[ImageNote, ...]
    remarks: dict[str, tuple[ImageNote, ...]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of images."""
        return sum(self.counts.values())

    @property
    def classes(self) -> int:
        """Number of classes with at least one image."""
        return sum(count > 0 for count in self.counts.values())

    @property
    def imbalance(self) -> float | None:
        """Largest over smallest non-zero class count; None without images."""
        return ClassPrior(self.counts).imbalance if self.samples else None

    @property
    def gini(self) -> float | None:
        """Gini coefficient of the class counts: 0 is balanced, towards 1 one class has nearly everything."""
        if not self.samples:
            return None
        ordered = np.sort(list(self.counts.values())).astype(np.float64)
        k = len(ordered)
        return float((2 * np.arange(1, k + 1) - k - 1) @ ordered / (k * ordered.sum()))

    @property
    def groups(self) -> dict[str, int]:
        """Number of classes that are many-, medium- and few-shot under the standard rule."""
        if not self.samples:
            return {"many": 0, "medium": 0, "few": len(self.counts)}
        return ClassPrior(self.counts).shot_groups("standard").sizes()

    @property
    def rare_classes(self) -> dict[str, int]:
        """Classes with 1 to 19 images, rarest first."""
        rare = [(name, n) for name, n in self.counts.items() if 0 < n < RARE]
        return dict(sorted(rare, key=lambda item: item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and properties, ready for JSON."""
        names = ("samples", "classes", "imbalance", "gini", "groups", "rare_classes")
        return {**asdict(self), **{name: getattr(self, name) for name in names}, "shot_rule": "standard"}


@dataclass(frozen=True)
class Inspection:
    """Everything `relatum inspect` knows.

    Args:
        source: the path or the words that name the data.
        options: command-line options with which `relatum train` opens this data.
        splits: train first, then val and test where there are any.
        duplicates: groups of images of the same content, within and across splits.
        config: the data settings that advice refers to (batch size, hold-out).
        bad_rows: lines of a table that name no image or no class, one sentence each; they are not counted.
        bad_folders: folders and links that cannot be read or lead back to themselves, one sentence each.
        look_alikes: groups of class names that a person can hardly tell apart.
    """

    source: str
    options: str
    splits: tuple[SplitInspection, ...]
    duplicates: tuple[Duplicate, ...]
    config: DataConfig
    bad_rows: tuple[str, ...] = ()
    bad_folders: tuple[str, ...] = ()
    look_alikes: tuple[tuple[str, ...], ...] = ()

    @property
    def train(self) -> SplitInspection:
        """The split that training would use, before any hold-out."""
        return self.splits[0]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the data, worst first; empty for clean data."""
        return find_problems(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, findings and advice included, as plain lists, dicts and numbers for `json.dumps`."""
        content = {
            "source": self.source,
            "options": self.options,
            "splits": {split.name: split.to_dict() for split in self.splits},
            "duplicates": [group.to_dict() for group in self.duplicates],
            "bad_rows": self.bad_rows,
            "bad_folders": self.bad_folders,
            "look_alikes": self.look_alikes,
            "findings": [asdict(finding) for finding in self.findings],
            "advice": advice(self),
        }
        # through JSON once, so that tuples are lists here as well: what is written is what is read back
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain


def inspect_data(
    config_or_path: DataConfig | str | Path,
    *,
    workers: int = 2,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Count, decode and compare the images of a folder, CSV file, CIFAR folder or `DataConfig`.

    The data is taken as it lies on disk, after the long-tail cut if the config asks for one, before any hold-out.

    Args:
        config_or_path: what to inspect.
        workers: threads that read and decode.
        limit: look into at most this many images of each split, at even distances; counts stay complete. 0 looks into
            none: only counts, and what the table or folder tells by itself. Default all.
        progress: called with (images done, images in total).

    Raises:
        DataError: there is nothing to inspect: no such path, no class folders, an unreadable table.
    """
    if workers < 1 or (limit is not None and limit < 0):
        raise ConfigError(f"inspect: workers ({workers}) must be 1 or more, limit ({limit}) 0 or more.")
    config = config_or_path if isinstance(config_or_path, DataConfig) else DataConfig(root=str(config_or_path))
    opened = open_kindly(config)
    sources = opened.splits
    chosen = {split: spread(len(source), limit) for split, source in sources.items()}
    tick = _counter(progress, sum(map(len, chosen.values())))
    probes = {s: probe_source(source, chosen[s], workers=workers, tick=tick) for s, source in sources.items()}
    # a subset copies the pixels of an array: do so only where not all of them were looked at
    looked = {s: source if len(chosen[s]) == len(source) else source.subset(chosen[s]) for s, source in sources.items()}
    splits = [
        SplitInspection(split, checked=len(probes[split]), **facts, **_file_facts(split, looked[split], probes[split]))
        for split, facts in _class_facts(sources, opened.empty).items()
    ]
    groups = [Duplicate(tuple(_note(looked, place) for place in group)) for group in same_content(probes)]
    groups += _listed_twice(sources, groups)
    name = config.root or config.train_list or config.kind
    alike = tuple(look_alikes(list(dict.fromkeys(n for source in sources.values() for n in source.class_names))))
    found = (tuple(opened.bad_rows), tuple(opened.bad_folders), alike)
    return Inspection(name, _options(config), tuple(splits), tuple(groups), config, *found)


def _class_facts(sources: Mapping[str, ImageSource], empty: EmptyClasses) -> dict[str, dict[str, Any]]:
    """Return the fields of `SplitInspection` that come from counting, by split."""
    names = tuple(dict.fromkeys(name for source in sources.values() for name in source.class_names))
    tallies = {s: dict(zip(x.class_names, _tally(x), strict=True)) for s, x in sources.items()}
    # a folder that is empty in one split and has no image in any is one problem, not also missing elsewhere
    imaginary = {n for e in empty.values() for n in e if not any(tally.get(n) for tally in tallies.values())}
    facts = {}
    for split, tally in tallies.items():
        counts, here = {name: tally.get(name, 0) for name in names}, empty.get(split, ())
        missing = tuple(n for n in names if not counts[n] and n not in imaginary and n not in here)
        facts[split] = {"counts": counts, "empty_classes": here, "missing_classes": missing}
    return facts


def _tally(source: ImageSource) -> list[int]:
    counts: list[int] = np.bincount(source.targets, minlength=source.num_classes).tolist()
    return counts


def _listed_twice(sources: Mapping[str, ImageSource], known: Sequence[Duplicate]) -> list[Duplicate]:
    """Group the rows that name the same file, where looking into the files has not told so already."""
    files = {s: source for s, source in sources.items() if isinstance(source, FileSource)}
    places = [(split, len(source.paths)) for split, source in files.items()]
    groups = repeated_paths([path for source in files.values() for path in source.paths])
    if not groups:
        return []
    seen = {member.file for group in known for member in group.members}
    starts = np.cumsum([0, *(length for _, length in places)])

    def note(i: int) -> ImageNote:
        part = int(np.searchsorted(starts, i, side="right")) - 1
        return _note(files, (places[part][0], i - int(starts[part])))

    members = [tuple(note(i) for i in group) for group in groups]
    return [Duplicate(group) for group in members if not any(member.file in seen for member in group)]


def _counter(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return tick


def _file_facts(split: str, looked: ImageSource, probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the fields of `SplitInspection` that come from looking into the images."""

    def notes(positions: Sequence[int]) -> tuple[ImageNote, ...]:
        return tuple(_note({split: looked}, (split, i), probes[i].words) for i in positions)

    return {
        "unreadable": notes([i for i, probe in enumerate(probes) if probe.problem]),
        "sizes": sizes_of(probes),
        "tiny": notes(tiny_images(probes)),
        "odd_shapes": notes(odd_shapes(probes)),
        "remarks": _remarks(split, looked, probes),
    }


def _remarks(split: str, looked: ImageSource, probes: Sequence[Probe]) -> dict[str, tuple[ImageNote, ...]]:
    found: dict[str, list[ImageNote]] = {}
    for i, probe in enumerate(probes):
        for kind, words in probe.remarks:
            found.setdefault(kind, []).append(_note({split: looked}, (split, i), words))
    return {kind: tuple(notes) for kind, notes in found.items()}


def _note(sources: Mapping[str, ImageSource], place: Place, words: str = "") -> ImageNote:
    split, i = place
    source = sources[split]
    return ImageNote(split, source.class_names[source.targets[i]], source.describe(i), words)


def _options(config: DataConfig) -> str:
    """Write the settings that name the data as command-line options."""
    given = {f.name: getattr(config, f.name) for f in fields(config) if getattr(config, f.name) != f.default}
    words = [
        f"--data.{name.replace('_', '-')} {shlex.quote(str(given[name]))}" for name in _NAMING_OPTIONS if name in given
    ]
    return " ".join(words)
