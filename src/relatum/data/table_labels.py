"""From the labels of a table to class ids: names, ids, and what was meant as one of them and is not."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relatum.data.files import shown
from relatum.data.folder import Complain
from relatum.data.source import CLASS_LIMIT
from relatum.errors import suggest

_NO_VALUE = ("nan", "na", "n/a", "none", "null")


class Row(NamedTuple):
    """One line of a CSV file."""

    line: int
    path: str
    label: str
    split: str


def is_whole(label: str) -> bool:
    """Whether a label is a class id as it stands."""
    return label.isascii() and label.isdigit()


def is_number(label: str) -> bool:
    """Whether a label was meant as a number: an id, a fraction, a negative number or the `nan` of a spreadsheet."""
    try:
        float(label)
    except ValueError:
        return False
    return True


def label_problem(label: str) -> str:
    """Say why a label is no class id and no name for a class either; "" if it may be one of them."""
    if is_whole(label):
        return f"label {label} is too large; number the classes 0, 1, 2, ..." if int(label) >= CLASS_LIMIT else ""
    if label.lower() in _NO_VALUE:
        return f"label '{label}' stands for no value; fill it in, or list it in data.class_names if it is a name."
    return ""


def number_problem(label: str) -> str:
    """Say why a label that was meant as a number is no class id."""
    value = float(label)
    if value < 0:
        return f"label {label} is negative; class ids start at 0."
    whole = f": write {int(value)}" if math.isfinite(value) and value == int(value) else ""
    return f"label '{shown(label)}' is not a whole number; class ids are 0, 1, 2, ...{whole}."


Find = Callable[[str], int | str]
"""From a label to its class id, or to words on why it has none."""


def class_map(labels: set[str], known: set[str], class_names: Sequence[str] | None) -> tuple[Sequence[str], Find]:
    """Return the class names and how to find the class of a label.

    Args:
        labels: all labels of a table.
        known: those that make a class where labels are names.
        class_names: name of each class id, if they are given.
    """
    numbers = all(map(is_number, labels))
    if class_names is not None:
        names = list(class_names)
    elif numbers:
        ids = [int(label) for label in labels if is_whole(label) and int(label) < CLASS_LIMIT]
        names = [str(k) for k in range(max(ids, default=0) + 1)]
    else:
        names = sorted(label for label in known if not label_problem(label))
    place = {name: k for k, name in enumerate(names)}

    def find(label: str) -> int | str:
        if label in place:
            return place[label]
        if (numbers or class_names is not None) and is_whole(label) and int(label) < len(names):
            return int(label)
        if class_names is None and numbers and not is_whole(label):
            return number_problem(label)
        return (class_names is None and label_problem(label)) or _unknown_label(label, names)

    return names, find


def labelled_rows(
    table: Path, rows: list[Row], find: Find, complain: Complain
) -> tuple[list[Row], npt.NDArray[np.int64]]:
    """Return the rows whose label is a class, and the class ids."""
    known = {label: find(label) for label in {row.label for row in rows}}
    kept: list[Row] = []
    targets = array("q")
    for row in rows:
        found = known[row.label]
        if isinstance(found, str):
            complain(f"{shown(table)}, line {row.line}: {found}")
            continue
        kept.append(row)
        targets.append(found)
    return kept, np.frombuffer(targets, dtype=np.int64) if targets else np.empty(0, np.int64)


def _unknown_label(label: str, names: Sequence[str]) -> str:
    if label.lstrip("-").isdigit():
        return f"label {label} is out of range for {len(names)} classes; labels must be 0 to {len(names) - 1}."
    words = shown(suggest(label, names))
    return f"unknown class '{shown(label)}', which the training rows or the class names do not have; {words}"
