"""Tables of images: CSV files with `path,label[,split]`, and `path label` lists as published for long-tailed sets."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relatum.data.folder import SPLIT_FOLDERS
from relatum.data.source import FileSource, ImageSource
from relatum.errors import DataError, suggest

_SPLIT_OF = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}
Row = tuple[int, str, str, str]  # line number, path, label, split


def read_csv(
    path: str | Path, root: str | Path | None = None, class_names: Sequence[str] | None = None
) -> dict[str, ImageSource]:
    """Read a CSV file with a header and the columns `path`, `label` and, if there are splits, `split`.

    Labels may be names or ids. With `class_names` a label is one of these names, or else an id. Without, labels that
    are all whole numbers are ids as they stand (K is the largest plus one); otherwise the classes are the sorted names
    of the training rows.

    Args:
        path: the CSV file, UTF-8.
        root: what relative image paths are relative to; default the folder of the CSV file.
        class_names: name of each class id.

    Returns:
        The splits in the file ("train", "val", "test"); all rows are "train" without a `split` column.
    """
    table = Path(path)
    rows = csv_rows(table)
    if not any(row[3] == "train" for row in rows):
        raise DataError(f"{table} has no training rows; give some rows the split 'train'.")
    names, targets = _class_map(table, rows, class_names)
    base = str(table.parent if root is None else root)
    splits: dict[str, ImageSource] = {}
    for split in SPLIT_FOLDERS:
        chosen = [i for i, row in enumerate(rows) if row[3] == split]
        if chosen:
            paths = [os.path.join(base, rows[i][1]) for i in chosen]  # noqa: PTH118  (Path is slow for 400,000)
            splits[split] = FileSource(paths, targets[chosen], names, name=f"{table} ({split})")
    return splits


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
    paths, labels = _list_entries(Path(path))
    names = class_names
    if names is None and num_classes is not None:
        names = [str(k) for k in range(num_classes)]
    _check_list_range(Path(path), labels, None if names is None else len(names))
    base = str(root) if str(root) else str(Path(path).parent)
    full = [os.path.join(base, p) for p in paths]  # noqa: PTH118
    return FileSource(full, labels, names, name=str(path))


def read_lists(
    train: str | Path,
    val: str | Path | None = None,
    test: str | Path | None = None,
    root: str | Path = "",
    class_names: Sequence[str] | None = None,
) -> dict[str, ImageSource]:
    """Read one `path label` list per split; all splits share one class map. See `read_list`."""
    files = {"train": train, "val": val, "test": test}
    given = {split: file for split, file in files.items() if file}
    sources = {split: read_list(file, root, class_names) for split, file in given.items()}
    size = max(source.num_classes for source in sources.values())
    names = class_names if class_names is not None else [str(k) for k in range(size)]
    return {split: FileSource(s.paths, s.targets, names, name=s.name) for split, s in sources.items()}


def csv_rows(table: Path) -> list[Row]:
    """Return the checked rows of a CSV file."""
    rows: list[Row] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = _columns(table, next(reader, []))
            for cells in reader:
                if cells:
                    rows.append(_row(table, reader.line_num, cells, columns))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {table}: {error}. Give a CSV file in UTF-8 with the header path,label."
        ) from error
    if not rows:
        raise DataError(f"{table} has no rows below its header; add one line per image.")
    return rows


def _columns(table: Path, header: list[str]) -> tuple[int, int, int | None]:
    names = [h.strip().lower() for h in header]
    missing = [c for c in ("path", "label") if c not in names]
    if missing:
        raise DataError(
            f"{table}, line 1: no column '{missing[0]}' in the header '{','.join(header)}'; "
            "the first line must be path,label or path,label,split."
        )
    return names.index("path"), names.index("label"), names.index("split") if "split" in names else None


def _row(table: Path, line: int, cells: list[str], columns: tuple[int, int, int | None]) -> Row:
    at_path, at_label, at_split = columns
    if len(cells) <= max(at_path, at_label, at_split or 0):
        raise DataError(f"{table}, line {line}: only {len(cells)} cells; give path, label and split as in the header.")
    path, label = cells[at_path].strip(), cells[at_label].strip()
    if not path or not label:
        raise DataError(f"{table}, line {line}: the {'path' if not path else 'label'} is empty; fill it in.")
    if at_split is None:
        return line, path, label, "train"
    word = cells[at_split].strip().lower()
    if word not in _SPLIT_OF:
        raise DataError(f"{table}, line {line}: unknown split '{cells[at_split]}'; {suggest(word, _SPLIT_OF)}")
    return line, path, label, _SPLIT_OF[word]


def _class_map(
    table: Path, rows: list[Row], class_names: Sequence[str] | None
) -> tuple[Sequence[str], npt.NDArray[np.int64]]:
    numbers = all(_is_whole(row[2]) for row in rows)
    if class_names is not None:
        names = list(class_names)
    elif numbers:
        names = [str(k) for k in range(max(int(row[2]) for row in rows) + 1)]
    else:
        names = sorted({row[2] for row in rows if row[3] == "train"})
    ids = {name: k for k, name in enumerate(names)}
    by_number = numbers or class_names is not None
    targets = np.empty(len(rows), dtype=np.int64)
    for i, (line, _, label, _) in enumerate(rows):
        found = ids.get(label)
        if found is None and by_number and _is_whole(label) and int(label) < len(names):
            found = int(label)
        if found is None:
            raise DataError(f"{table}, line {line}: {_label_problem(label, names)}")
        targets[i] = found
    return names, targets


def _is_whole(label: str) -> bool:
    return label.isascii() and label.isdigit()


def _label_problem(label: str, names: Sequence[str]) -> str:
    if label.lstrip("-").isdigit():
        return f"label {label} is out of range for {len(names)} classes; labels must be 0 to {len(names) - 1}."
    return f"unknown class '{label}', which the training rows or the class names do not have; {suggest(label, names)}"


def _list_entries(path: Path) -> tuple[list[str], npt.NDArray[np.int64]]:
    lines = _lines(path)
    pairs = [line.strip().rsplit(None, 1) for line in lines]
    try:
        entries = [pair for pair in pairs if pair]
        labels = np.array([int(pair[1]) for pair in entries], dtype=np.int64)
    except (IndexError, ValueError, OverflowError):
        line = next(n for n, pair in enumerate(pairs, 1) if pair and not _is_entry(pair))
        raise DataError(
            f"{path}, line {line}: '{lines[line - 1].strip()}' is not `path label` with a whole number as label; "
            "correct the line, or use a CSV file for class names."
        ) from None
    if not entries:
        raise DataError(f"{path} is empty; give one line `path label` per image.")
    return [pair[0] for pair in entries], labels


def _is_entry(pair: list[str]) -> bool:
    return len(pair) == 2 and pair[1].lstrip("+-").isdecimal() and len(pair[1]) < 19


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        return text.decode("utf-8-sig").split("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read list {path}: {error}. Give a text file of `path label` lines.") from error


def _check_list_range(path: Path, labels: npt.NDArray[np.int64], num_classes: int | None) -> None:
    limit = num_classes if num_classes is not None else int(labels.max()) + 1
    bad = np.flatnonzero((labels < 0) | (labels >= limit))
    if bad.size:
        raise DataError(
            f"{path}, entry {int(bad[0]) + 1}: label {int(labels[bad[0]])} is out of range; labels must be "
            f"0 to {max(limit - 1, 0)}. Correct the list or the class names."
        )
