"""Files and names as they come: open only what is a file, and show any name without upsetting a terminal."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from relatum.errors import printable

# What a message may hold but a name in a table may not: it would break the line.
_LINE_BREAKS = str.maketrans({"\n": "\\n", "\t": "\\t", "\u2028": "\\u2028", "\u2029": "\\u2029"})
# Without waiting: to open a named pipe for reading would wait for a writer who may never come.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """What was to be read is a folder, a named pipe, a socket or a device; `strerror` says which."""


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading bytes; anything that is not a regular file is refused at once, without waiting on it."""
    handle = os.open(path, _FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise NotAFileError(None, f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def opening_problem(error: OSError, path: str | Path) -> str:
    """Say in a few words why a file could not be opened."""
    if isinstance(error, FileNotFoundError):
        return "a link to a file that is not there" if Path(path).is_symlink() else "file not found"
    return error.strerror or str(error)


def shown(text: object) -> str:
    r"""Return a name with its control characters escaped, fit for a message, a table or a terminal.

    >>> shown("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    return printable(str(text)).translate(_LINE_BREAKS)
