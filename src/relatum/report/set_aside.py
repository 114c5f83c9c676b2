"""Images that a run set aside since they cannot be read: counts per class, and the list, as the page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relatum.data.files import shown
from relatum.report.records import RunRecord

KEY = "quarantine"
LONGEST_LIST = 200
"""More files than this are in manifest.json only: the page is to be mailed."""


@dataclass(frozen=True)
class SetAside:
    """What one run, or several that agree, set aside.

    Args:
        names: of the runs.
        images: how many.
        splits: the splits that lost some.
        counts: of each class: its name, and how many it lost in each of `splits`.
        files: split, class, path and reason of each, the first `LONGEST_LIST`.
    """

    names: str
    images: int
    splits: tuple[str, ...]
    counts: tuple[tuple[str, tuple[int, ...]], ...]
    files: tuple[tuple[str, str, str, str], ...]


def set_aside_section(records: Sequence[RunRecord]) -> list[SetAside]:
    """Return what the runs set aside, once for all runs that agree; empty where all images could be read."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for record in records:
        for name, manifest in _manifests(record):
            files = tuple(_files(manifest.get(KEY)))
            if files and name not in found.setdefault(files, []):
                found[files].append(name)
    return [_summary(", ".join(names), files) for files, names in found.items()]


def _manifests(record: RunRecord) -> list[tuple[str, dict[str, Any]]]:
    stage = record.pretrain
    first = [] if stage is None else [(f"the pretraining of {record.name}", stage.manifest)]
    return [*first, (record.name, record.manifest)]


def _files(kept: Any) -> list[tuple[str, str, str, str]]:
    """Read the entry of a manifest; anything that is not one counts as nothing, a page is written all the same."""
    try:
        return [
            (shown(split), shown(bad["class_name"]), shown(bad["path"]), shown(bad["reason"]))
            for split, listed in kept["splits"].items()
            for bad in listed
        ]
    except (TypeError, KeyError, AttributeError):
        return []


def _summary(names: str, files: tuple[tuple[str, str, str, str], ...]) -> SetAside:
    splits = tuple(dict.fromkeys(split for split, *_ in files))
    tally = Counter((split, name) for split, name, *_ in files)
    classes = Counter(name for _, name, *_ in files)
    counts = tuple((name, tuple(tally[split, name] for split in splits)) for name, _ in classes.most_common())
    return SetAside(names, len(files), splits, counts, files[:LONGEST_LIST])
