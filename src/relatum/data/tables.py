"""Tables of images: CSV files with `path,label[,split]`, and `path label` lists as published for long-tailed sets."""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relatum.data.files import shown
from relatum.data.folder import SPLIT_FOLDERS, Complain, refuse
from relatum.data.source import CLASS_LIMIT, FileSource, ImageSource
from relatum.data.table_checks import Entries, check_repeats, text_lines
from relatum.data.table_labels import Row, class_map, labelled_rows
from relatum.errors import DataError, suggest

_SPLIT_OF = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}


def read_csv(
    path: str | Path, root: str | Path | None = None, class_names: Sequence[str] | None = None
) -> dict[str, ImageSource]:
    """Read a CSV file with a header and the columns `path`, `label` and, if there are splits, `split`.

    Labels may be names or ids. With `class_names` a label is one of these names, or else an id. Without, labels that
    are all whole numbers are ids as they stand (K is the largest plus one); otherwise the classes are the sorted names
    of the training rows. An image that is listed twice is warned of, one with two labels is refused.

    Args:
        path: the CSV file, UTF-8.
        root: what relative image paths are relative to; default the folder of the CSV file.
        class_names: name of each class id.

    Returns:
        The splits in the file ("train", "val", "test"); all rows are "train" without a `split` column.
    """
    splits, entries = csv_splits(path, root, class_names)
    check_repeats([entries])
    return splits


def csv_splits(
    path: str | Path,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    complain: Complain | None = None,
) -> tuple[dict[str, ImageSource], Entries]:
    """Read a CSV file as `read_csv` does, without looking for repeated images.

    Args:
        path: the CSV file.
        root: what relative image paths are relative to.
        class_names: name of each class id.
        complain: told of each bad row, which is then left out, and classes may be in any split; default raises.
    """
    table = Path(path)
    rows = csv_rows(table, complain or refuse)
    if not any(row.split == "train" for row in rows):
        raise DataError(f"{shown(table)} has no training rows; give some rows the split 'train'.")
    known = {row.label for row in rows if complain is not None or row.split == "train"}
    names, find = class_map({row.label for row in rows}, known, class_names)
    kept, targets = labelled_rows(table, rows, find, complain or refuse)
    base = str(table.parent if root is None else root)
    paths, lines = [resolve_entry(base, row.path) for row in kept], np.array([row.line for row in kept], np.int64)
    split_of = np.array([row.split for row in kept], dtype="U5")
    splits: dict[str, ImageSource] = {}
    for split in SPLIT_FOLDERS:
        chosen = np.flatnonzero(split_of == split)
        if len(chosen):
            splits[split] = FileSource([paths[i] for i in chosen], targets[chosen], names, name=f"{table} ({split})")
    return splits, Entries(table, paths, targets, lines)


def resolve_entry(base: str, entry: str) -> str:
    """Return the path of an image that a table or list calls `entry`; `base` is the folder it is relative to."""
    return os.path.join(base, entry)  # noqa: PTH118  (Path is slow for two million)


def read_list(
    path: str | Path,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
    *,
    num_classes: int | None = None,
) -> FileSource:
    """Read a `path label` list, plain or gzipped (`.gz`); paths may contain spaces, the label is the last word.

    Labels are class ids as they stand. The files are not looked at: a missing image is named when it is loaded.

    Args:
        path: the list.
        root: what the image paths are relative to; default the folder of the list.
        class_names: name of each class id; default "0", "1", ...
        num_classes: K if there are no names; default the largest label plus one.
    """
    names = class_names
    if names is None and num_classes is not None:
        names = [str(k) for k in range(num_classes)]
    entries = list_entries(Path(path), root, None if names is None else len(names))
    check_repeats([entries])
    return FileSource(entries.paths, entries.targets, names, name=str(path))


def read_lists(
    train: str | Path,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
) -> dict[str, ImageSource]:
    """Read one `path label` list per split; all splits share one class map. See `read_list`."""
    splits, entries = list_splits(train, val, test, root, class_names)
    check_repeats(entries)
    return splits


def list_splits(
    train: str | Path,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
    complain: Complain = refuse,
) -> tuple[dict[str, ImageSource], list[Entries]]:
    """Read lists as `read_lists` does, without looking for repeated images; `complain` is told of each bad line."""
    files = {"train": train, "val": val, "test": test}
    size = None if class_names is None else len(class_names)
    found = {split: list_entries(Path(file), root, size, complain) for split, file in files.items() if file}
    size = max(int(entries.targets.max(initial=0)) + 1 for entries in found.values())
    names = class_names if class_names is not None else [str(k) for k in range(size)]
    splits: dict[str, ImageSource] = {
        split: FileSource(e.paths, e.targets, names, name=str(e.table)) for split, e in found.items()
    }
    return splits, list(found.values())


def csv_rows(table: Path, complain: Complain = refuse) -> list[Row]:
    """Return the checked rows of a CSV file; `complain` is told of bad ones, which are left out."""
    rows: list[Row] = []
    words: dict[str, str] = {}  # a label is kept once, not once a row
    reader = csv.reader(text_lines(table), strict=True)
    try:
        columns = _columns(table, next(reader, []))
        for cells in reader:
            row = _row(table, reader.line_num, cells, columns, complain) if cells else None
            if row is not None:
                rows.append(row._replace(label=words.setdefault(row.label, row.label)))
    except csv.Error as error:
        complain(f"{shown(table)}, line {reader.line_num}: {error}. Close every quote, and save the file as plain CSV.")
    if not rows:
        raise DataError(f"{shown(table)} has no rows below its header; add one line per image.")
    return rows


class _Columns(NamedTuple):
    path: int
    label: int
    split: int | None
    width: int


def _columns(table: Path, header: list[str]) -> _Columns:
    names = [h.strip().lower() for h in header]
    missing = [c for c in ("path", "label") if c not in names]
    if missing:
        line = shown(",".join(header))
        what = f"in the header '{line[:100]}'" if header else "since the file is empty"
        comma = " Columns are separated by commas." if len(header) == 1 and any(c in line for c in ";\\|") else ""
        raise DataError(
            f"{shown(table)}, line 1: no column '{missing[0]}' {what}; "
            f"the first line must be path,label or path,label,split.{comma}"
        )
    twice = [c for c in ("path", "label", "split") if names.count(c) > 1]
    if twice:
        raise DataError(f"{shown(table)}, line 1: there are two columns '{twice[0]}'; keep one of them.")
    split = names.index("split") if "split" in names else None
    return _Columns(names.index("path"), names.index("label"), split, len(names))


def _row(table: Path, line: int, cells: list[str], columns: _Columns, complain: Complain) -> Row | None:
    words = _row_problem(cells, columns)
    if words:
        complain(f"{shown(table)}, line {line}: {words}")
        return None
    split = "train" if columns.split is None else _SPLIT_OF[cells[columns.split].strip().lower()]
    return Row(line, cells[columns.path].strip(), cells[columns.label].strip(), split)


def _row_problem(cells: list[str], columns: _Columns) -> str:
    if len(cells) <= max(columns.path, columns.label, columns.split or 0):
        return f"only {len(cells)} cells; give path, label and split as in the header."
    if any(cell.strip() for cell in cells[columns.width :]):
        return f"{len(cells)} cells under a header of {columns.width}; put a path with a comma in quotes."
    for name, at in (("path", columns.path), ("label", columns.label)):
        if not cells[at].strip():
            return f"the {name} is empty; fill it in."
    word = "train" if columns.split is None else cells[columns.split].strip().lower()
    if word not in _SPLIT_OF:
        return f"unknown split '{shown(word)}'; {suggest(word, _SPLIT_OF)}"
    return ""


def list_entries(
    path: Path, root: str | Path = "", num_classes: int | None = None, complain: Complain = refuse
) -> Entries:
    """Read the lines of a `path label` list; `complain` is told of bad ones, which are left out."""
    base = str(root) if str(root) else str(path.parent)
    limit = CLASS_LIMIT if num_classes is None else num_classes
    paths: list[str] = []
    targets, lines = array("q"), array("q")
    for line, name, label in _pairs(path, complain):
        if not 0 <= label < limit:
            valid = f"0 to {limit - 1}" if num_classes is not None else "0 or more, one for each class"
            complain(
                f"{shown(path)}, entry {len(paths) + 1}: label {label} is out of range (line {line}); labels must be "
                f"{valid}. Correct the list or the class names."
            )
            continue
        paths.append(resolve_entry(base, name))
        targets.append(label)
        lines.append(line)
    if not paths:
        raise DataError(f"{shown(path)} is empty; give one line `path label` per image.")
    return Entries(path, paths, np.frombuffer(targets, dtype=np.int64), np.frombuffer(lines, dtype=np.int64))


def _pairs(path: Path, complain: Complain) -> Iterator[tuple[int, str, int]]:
    """Yield line number, image and label of each line that is not blank."""
    for number, line in enumerate(text_lines(path), 1):
        pair = line.strip().rsplit(None, 1)
        if len(pair) == 2 and _is_entry(pair[1]):
            yield number, pair[0], int(pair[1])
        elif pair:
            complain(
                f"{shown(path)}, line {number}: '{shown(line.strip())[:200]}' is not `path label` with a whole number "
                "as label; correct the line, or use a CSV file for class names."
            )


def _is_entry(label: str) -> bool:
    return label.lstrip("+-").isdecimal() and len(label) < 19
