"""What can be wrong with a table of images: its text, and images that are listed more than once."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from relatum.data.files import open_regular, opening_problem, shown
from relatum.errors import DataError

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Entries:
    """What a table lists.

    Args:
        table: the file.
        paths: of the images, N of them, resolved.
        targets: class ids, (N,).
        lines: line of each in the file, from 1, (N,).
    """

    table: Path
    paths: Sequence[str]
    targets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


def text_lines(path: Path, what: str = "") -> Iterator[str]:
    """Yield the lines of a UTF-8 text, plain or gzipped (`.gz`), with their ends.

    Args:
        path: the file.
        what: it should be, for messages: "class names ".

    Raises:
        DataError: it is no such text; the message says what it is instead, and in which line.
    """
    try:
        with open_regular(path) as file, io.TextIOWrapper(_unzipped(file, path), "utf-8-sig", newline="") as text:
            for number, line in enumerate(text, 1):
                if "\0" in line:
                    raise DataError(f"{shown(path)}, line {number}: a NUL byte. Give a text file, saved as UTF-8.")
                yield line
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)} {_foreign_text(path)} Save it as UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = opening_problem(error, path) if isinstance(error, OSError) else str(error)
        raise DataError(
            f"cannot read {what}{shown(path)}: {reason}. Give a text file in UTF-8, plain or as .gz."
        ) from error


def _unzipped(file: IO[bytes], path: Path) -> IO[bytes]:
    return gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file  # type: ignore[return-value]


def _foreign_text(path: Path) -> str:
    """Say where a text stops being UTF-8, and what it may be."""
    with open_regular(path) as file:
        for number, line in enumerate(_unzipped(file, path), 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return "(line 1) is UTF-16."
            if number == 1 and line.startswith(_GZIP):
                return "(line 1) is gzipped; its name must end in .gz."
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"is not UTF-8: line {number} has the byte 0x{line[error.start]:02x} (Latin-1?)."
    return "is not UTF-8."


def repeated_paths(paths: Sequence[str]) -> list[list[int]]:
    """Return the places of each path that is there more than once, in order; lean enough for millions of paths."""
    if len(paths) < 2:
        return []
    keys = np.fromiter((hash(_plain(path)) for path in paths), np.int64, len(paths))
    order = np.argsort(keys, kind="stable")
    same = keys[order][1:] == keys[order][:-1]
    candidates = np.unique(np.concatenate([order[1:][same], order[:-1][same]]))
    places: dict[str, list[int]] = {}
    for i in candidates.tolist():  # two paths may share a hash: only the text itself decides
        places.setdefault(_plain(paths[i]), []).append(i)
    return [group for group in places.values() if len(group) > 1]


def _plain(path: str) -> str:
    """Bring `a/./b` and `a//b` to the spelling `a/b`."""
    return os.path.normpath(path) if "/." in path or "//" in path else path


def check_repeats(tables: Sequence[Entries]) -> None:
    """Refuse an image that is listed with two labels; warn of images that are listed twice with the same one."""
    paths = [path for entries in tables for path in entries.paths] if len(tables) > 1 else tables[0].paths
    groups = repeated_paths(paths)
    if not groups:
        return
    targets = np.concatenate([entries.targets for entries in tables])
    for group in groups:
        other = next((i for i in group if targets[i] != targets[group[0]]), None)
        if other is not None:
            raise DataError(
                f"{_place(tables, other)}: {shown(paths[other])} has label {targets[other]} here, but label "
                f"{targets[group[0]]} at {_place(tables, group[0])}. An image has one label: remove the wrong row."
            )
    first, second = groups[0][:2]
    surplus = sum(len(group) - 1 for group in groups)
    warnings.warn(
        f"{_place(tables, second)} lists {shown(paths[second])} again, after {_place(tables, first)}: "
        f"{surplus:,} {'row names' if surplus == 1 else 'rows name'} an image for a second time. Each counts as one "
        "more sample, and one that is in two splits is trained on and tested on; `relatum inspect` lists them.",
        UserWarning,
        stacklevel=3,
    )


def _place(tables: Sequence[Entries], index: int) -> str:
    for entries in tables:
        if index < len(entries.paths):
            return f"{shown(entries.table)}, line {int(entries.lines[index])}"
        index -= len(entries.paths)
    raise IndexError(index)
