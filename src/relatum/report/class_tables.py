"""Tables about single classes: the rarest ones, and the pairs that are most confused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relatum.report.format import NOT_AVAILABLE, percent, whole
from relatum.report.records import RunRecord


@dataclass(frozen=True)
class RareClass:
    """A class, its training images, and its accuracy in every run (written)."""

    name: str
    train_count: str
    accuracies: tuple[str, ...]


@dataclass(frozen=True)
class ConfusedPair:
    """Images of `true` that were taken for `predicted`, and their share of all images of `true`."""

    true: str
    predicted: str
    images: str
    share: str


def rarest_classes(records: Sequence[RunRecord], most: int = 10) -> list[RareClass]:
    """Return the classes with the fewest training images, from the last run that has per-class scores."""
    scored = [record for record in records if record.per_class]
    if not scored:
        return []
    rows = sorted(scored[-1].per_class, key=lambda row: int(row["train_count"]))[:most]
    accuracy = [{row["name"]: percent(row["accuracy"]) for row in record.per_class} for record in records]
    return [
        RareClass(row["name"], whole(row["train_count"]), tuple(a.get(row["name"], NOT_AVAILABLE) for a in accuracy))
        for row in rows
    ]


def confused_pairs(record: RunRecord, most: int = 10) -> list[ConfusedPair]:
    """Return the off-diagonal cells of the confusion matrix with the most images."""
    matrix = np.array(record.primary.get("confusion") or [[]], dtype=np.int64)
    if matrix.size == 0:
        return []
    totals = matrix.sum(axis=1)
    np.fill_diagonal(matrix, 0)
    names = [row["name"] for row in record.per_class]
    cells = np.argsort(-matrix, axis=None, kind="stable")[:most]
    found = [(int(t), int(p)) for t, p in zip(*np.unravel_index(cells, matrix.shape), strict=True) if matrix[t, p]]
    return [
        ConfusedPair(names[t], names[p], whole(int(matrix[t, p])), percent(matrix[t, p] / totals[t])) for t, p in found
    ]
