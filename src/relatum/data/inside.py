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
    join = os.path.join
    for i, entry in enumerate(entries):
        # The first look decides nearly always; only odd entries are taken apart.
        odd = entry[:1] == os.sep or ".." in entry or "\0" in entry
        if odd and not (allow_outside and "\0" not in entry):
            _require_inside_words(entry, base, f"{table}, line {rows[i] if rows is not None else i + 1}")
    return [join(base, entry) for entry in entries]


def _require_inside_words(entry: str, base: str, where: str) -> None:
    if "\0" in entry:
        raise DataError(f"{where}: the path '{entry}' has a NUL character in it; correct the line.")
    full = os.path.abspath(os.path.join(base, entry))  # noqa: PTH100, PTH118 (takes `..` out without the disk)
    if not any(_is_below(full, root) for root in _roots(base)):
        raise DataError(f"{where}: the path '{entry}' leads out of the image root {base or '.'}. {_CURE}")


def _roots(base: str) -> tuple[str, str]:
    """The root as it is written and as it really is: absolute entries may use either."""
    return os.path.abspath(base), os.path.realpath(base)  # noqa: PTH100


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)


def require_inside(path: str, root: str | Path) -> None:
    """Refuse an image that really lies elsewhere than below `root`, whatever links lead there.

    Raises:
        DataError: names the path, and where it leads.
    """
    real = os.path.realpath(path)
    if not _is_below(real, os.path.realpath(root)):
        raise DataError(
            f"image {path} is a link, or lies behind one, to {real}, outside the image root {root}. {_CURE}"
        )
