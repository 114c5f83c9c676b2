"""Lists and tables name images; they may come from strangers, so what they name must lie inside the image root.

Two checks, because only one of them is cheap. Reading a table looks at the words alone: absolute paths and `..` that
lead out are refused before anything is opened, millions of entries in a second or two. Opening an image looks at the
file system: a link that leads out of the root is refused there.

Folders of class folders are another matter: their links are the user's own, and are followed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from relatum.data.files import shown
from relatum.errors import DataError

_CURE = "Move the image, or allow it with --data.allow-outside."


def resolve_entries(
    entries: Sequence[str],
    root: str | Path,
    table: str | Path,
    *,
    rows: Sequence[int] | None = None,
    allow_outside: bool = False,
) -> list[str]:
    """Return the path of each entry of a table, relative ones joined to `root`; nothing is looked up on the disk.

    Args:
        entries: paths as the table has them, N.
        root: image root.
        table: the list or CSV file, for errors.
        rows: line of each entry in the table, for errors; default 1, 2, ...
        allow_outside: skip the check.

    Raises:
        DataError: an entry lies outside the root, by an absolute path or by `..`, or is no path at all.
    """
    base = str(root)
    # One look at all of the text decides nearly always; only a table with odd entries is gone through.
    text = "\n".join(entries)
    if "\0" in text or (not allow_outside and (".." in text or text.startswith(os.sep) or f"\n{os.sep}" in text)):
        _check_words(entries, base, table, rows, allow_outside)
    start = os.path.join(base, "")  # noqa: PTH118 (Path is slow for millions)
    return [entry if entry[:1] == os.sep else start + entry for entry in entries]


def _check_words(
    entries: Sequence[str], base: str, table: str | Path, rows: Sequence[int] | None, allow_outside: bool
) -> None:
    # The root as it is written and as it really is: absolute entries may use either.
    roots = tuple(_below(root) for root in (os.path.abspath(base), os.path.realpath(base)))  # noqa: PTH100
    for i, entry in enumerate(entries):
        fault = ""
        if "\0" in entry:
            fault = "has a NUL character in it; correct the line."
        elif not (allow_outside or _is_inside(entry, base, roots)):
            fault = f"leads out of the image root '{shown(base or '.')}'. {_CURE}"
        if fault:
            line = rows[i] if rows is not None else i + 1
            raise DataError(f"{shown(table)}, line {line}: the path '{shown(entry)}' {fault}")


def _is_inside(entry: str, base: str, roots: tuple[str, ...]) -> bool:
    if ".." not in entry:
        return entry[:1] != os.sep or entry.startswith(roots)
    full = os.path.abspath(os.path.join(base, entry))  # noqa: PTH100, PTH118 (takes `..` out, without the disk)
    return full.startswith(roots)


def _below(root: str) -> str:
    """How the path of whatever lies in `root` begins."""
    return root.rstrip(os.sep) + os.sep


def require_inside(path: str, root: str | Path) -> None:
    """Refuse an image that really lies elsewhere than below `root`, whatever links lead there.

    Raises:
        DataError: names the path, and where it leads.
    """
    real = os.path.realpath(path)
    if not real.startswith(_below(os.path.realpath(root))):
        raise DataError(f"image {path} is, or lies behind, a link to {real}, outside the image root {root}. {_CURE}")
