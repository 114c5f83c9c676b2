"""Tables of images: CSV files with `path,label[,split]`, and `path label` lists as published for long-tailed sets."""

from __future__ import annotations

import csv
import itertools
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relatum.data.files import shown
from relatum.data.folder import SPLIT_FOLDERS, Complain, refuse
from relatum.data.inside import resolve_entries
from relatum.data.source import CLASS_LIMIT, FileSource, ImageSource
from relatum.data.table_checks import Entries, check_repeats, text_lines
from relatum.data.table_labels import Row, class_map, labelled_rows
from relatum.errors import DataError, suggest

_SPLIT_OF = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}

_BLOCK = 1 << 16
Pair = tuple[int, str, int]
"""Line number, image and label of an entry of a list."""


def read_csv(
    path: str | Path,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    *,
    allow_outside: bool = False,
) -> dict[str, ImageSource]:
    """Read a CSV file with a header and the columns `path`, `label` and, if there are splits, `split`.

    Labels may be names or ids. With `class_names` a label is one of these names, or else an id. Without, labels that
    are all whole numbers are ids as they stand (K is the largest plus one); otherwise the classes are the sorted names
    of the training rows. An image that is listed twice is warned of, one with two labels is refused.

    Args:
        path: the CSV file, UTF-8.
        root: what relative image paths are relative to; default the folder of the CSV file.
        class_names: name of each class id.
        allow_outside: let image paths lead out of the root.

    Returns:
        The splits in the file ("train", "val", "test"); all rows are "train" without a `split` column.
    """
    splits, entries = csv_splits(path, root, class_names, allow_outside=allow_outside)
    check_repeats([entries])
    return splits


def csv_splits(
    path: str | Path,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    complain: Complain | None = None,
    *,
    allow_outside: bool = False,
) -> tuple[dict[str, ImageSource], Entries]:
    """Read a CSV file as `read_csv` does, without looking for repeated images.

    Args:
        path: the CSV file.
        root: what relative image paths are relative to.
        class_names: name of each class id.
        complain: told of each bad row, which is then left out, and classes may be in any split; default raises.
        allow_outside: let image paths lead out of the root.
    """
    table = Path(path)
    rows = csv_rows(table, complain or refuse)
    if not any(row.split == "train" for row in rows):
        raise DataError(f"{shown(table)} has no training rows; give some rows the split 'train'.")
    known = {row.label for row in rows if complain is not None or row.split == "train"}
    names, find = class_map({row.label for row in rows}, known, class_names)
    kept, targets = labelled_rows(table, rows, find, complain or refuse)
    base = str(table.parent if root is None else root)
    names_of, line_of = [row.path for row in kept], [row.line for row in kept]
    places, paths = resolve(names_of, base, table, line_of, complain or refuse, allow_outside)
    kept, targets = [kept[i] for i in places], targets[np.asarray(places, dtype=np.int64)]
    split_of, lines = np.array([row.split for row in kept], dtype="U5"), np.array([row.line for row in kept], np.int64)
    inside = "" if allow_outside else base
    splits: dict[str, ImageSource] = {}
    for split in SPLIT_FOLDERS:
        chosen = np.flatnonzero(split_of == split)
        if len(chosen):
            name = f"{table} ({split})"
            splits[split] = FileSource([paths[i] for i in chosen], targets[chosen], names, name=name, inside=inside)
    return splits, Entries(table, paths, targets, lines)


def resolve(
    names: Sequence[str], base: str, table: Path, lines: Sequence[int], complain: Complain, allow_outside: bool
) -> tuple[Sequence[int], list[str]]:
    """Return which of the images that a table names may be read, and their paths; `complain` is told of the others."""
    try:
        return range(len(names)), resolve_entries(names, base, table, rows=lines, allow_outside=allow_outside)
    except DataError:
        if complain is refuse:
            raise
    kept, paths = [], []
    for i, name in enumerate(names):
        try:
            paths += resolve_entries([name], base, table, rows=[lines[i]], allow_outside=allow_outside)
            kept.append(i)
        except DataError as error:
            complain(str(error))
    return kept, paths


def read_list(
    path: str | Path,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
    *,
    num_classes: int | None = None,
    allow_outside: bool = False,
) -> FileSource:
    """Read a `path label` list, plain or gzipped (`.gz`); paths may contain spaces, the label is the last word.

    Labels are class ids as they stand. The files are not looked at: a missing image is named when it is loaded.

    Args:
        path: the list.
        root: what the image paths are relative to; default the folder of the list.
        class_names: name of each class id; default "0", "1", ...
        num_classes: K if there are no names; default the largest label plus one.
        allow_outside: let image paths lead out of the root.
    """
    names = class_names
    if names is None and num_classes is not None:
        names = [str(k) for k in range(num_classes)]
    size = None if names is None else len(names)
    entries = list_entries(Path(path), root, size, allow_outside=allow_outside)
    check_repeats([entries])
    inside = "" if allow_outside else list_base(path, root)
    return FileSource(entries.paths, entries.targets, names, name=str(path), inside=inside)


def list_base(path: str | Path, root: str | Path) -> str:
    """Return the folder that the paths of a list are relative to."""
    return str(root) if str(root) else str(Path(path).parent)


def read_lists(
    train: str | Path,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
    *,
    allow_outside: bool = False,
) -> dict[str, ImageSource]:
    """Read one `path label` list per split; all splits share one class map. See `read_list`."""
    splits, entries = list_splits(train, val, test, root, class_names, allow_outside=allow_outside)
    check_repeats(entries)
    return splits


def list_splits(
    train: str | Path,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
    complain: Complain = refuse,
    *,
    allow_outside: bool = False,
) -> tuple[dict[str, ImageSource], list[Entries]]:
    """Read lists as `read_lists` does, without looking for repeated images; `complain` is told of each bad line."""
    files = {"train": train, "val": val, "test": test}
    size = None if class_names is None else len(class_names)
    given = {split: Path(file) for split, file in files.items() if file}
    found = {s: list_entries(file, root, size, complain, allow_outside=allow_outside) for s, file in given.items()}
    size = max(int(entries.targets.max(initial=0)) + 1 for entries in found.values())
    names = class_names if class_names is not None else [str(k) for k in range(size)]
    splits: dict[str, ImageSource] = {
        split: FileSource(
            e.paths, e.targets, names, name=str(e.table), inside="" if allow_outside else list_base(e.table, root)
        )
        for split, e in found.items()
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
    path: Path,
    root: str | Path = "",
    num_classes: int | None = None,
    complain: Complain = refuse,
    *,
    allow_outside: bool = False,
) -> Entries:
    """Read the lines of a `path label` list; `complain` is told of bad ones, which are left out."""
    base, limit = list_base(path, root), CLASS_LIMIT if num_classes is None else num_classes
    paths: list[str] = []
    targets, lines = array("q"), array("q")
    for block in _blocks(_in_range(_pairs(path, complain), path, limit, num_classes is not None, complain)):
        kept, found = resolve([n for _, n, _ in block], base, path, [n for n, _, _ in block], complain, allow_outside)
        paths += found
        targets.extend(block[i][2] for i in kept)
        lines.extend(block[i][0] for i in kept)
    if not paths:
        raise DataError(f"{shown(path)} is empty; give one line `path label` per image.")
    return Entries(path, paths, np.frombuffer(targets, dtype=np.int64), np.frombuffer(lines, dtype=np.int64))


def _in_range(pairs: Iterator[Pair], path: Path, limit: int, known: bool, complain: Complain) -> Iterator[Pair]:
    """Pass on the entries whose label is one of the classes."""
    valid = f"0 to {limit - 1}" if known else "0 or more, one for each class"
    for number, (line, name, label) in enumerate(pairs, 1):
        if 0 <= label < limit:
            yield line, name, label
            continue
        complain(
            f"{shown(path)}, entry {number}: label {label} is out of range (line {line}); labels must be {valid}. "
            "Correct the list or the class names."
        )


def _blocks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yield the entries in blocks: of a list of millions, names and paths need not both be there at once."""
    while block := list(itertools.islice(pairs, _BLOCK)):
        yield block


def _pairs(path: Path, complain: Complain) -> Iterator[Pair]:
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
