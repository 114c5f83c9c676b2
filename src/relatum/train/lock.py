"""One process at a time in a run directory.

The lock is `flock` on a file `.lock`: the system drops it when its holder ends, however it ends, so there are no stale
locks to clean up. POSIX record locks (`lockf`) would not do: a process loses them as soon as it closes any other handle
of the file, as when it reads who holds it. What `flock` lacks is made up for here. Forked children inherit its handle
and would keep the lock after the death of the trainer, so they close it at once. And a second handle in the same
process would be refused, so a process holds the lock once, however often it opens the directory, one use after the
other or a stage inside of another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from relatum.errors import CheckpointError

LOCK = ".lock"
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


@dataclass(eq=False)
class _Held:
    """A lock of this process: its file, its handle, and how many use it."""

    path: Path
    handle: int
    process: int
    users: int = 0


_held: dict[Path, _Held] = {}


class RunLock:
    """Hold a run directory until `close`, the end of a `with` block, or the end of this object.

    Args:
        folder: the directory; made if it is not there.

    Raises:
        CheckpointError: another process holds it, or it cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = _hold(folder.resolve() / LOCK)
        except OSError as error:
            raise CheckpointError(f"cannot write to {folder}: {error.strerror}. Choose another --out.") from error
        self._release = weakref.finalize(self, _release, held)

    def close(self) -> None:
        """Let others in; closing twice does nothing."""
        self._release()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hold(path: Path) -> _Held | None:
    """Take the lock, or share it within this process; None where the file system has none."""
    held = _held.get(path)
    if held is None or not _is_at(held.handle, path):
        handle = _lock(path)
        if handle is None:
            return None
        held = _held[path] = _Held(path, handle, os.getpid())
    held.users += 1
    return held


def _lock(path: Path) -> int | None:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in _NO_LOCKS_HERE:
                warnings.warn(
                    f"{path.parent} is on a file system without locks; start one run there only.", stacklevel=5
                )
                return None
            if isinstance(error, BlockingIOError):
                raise _in_use(path) from error
            raise
        if _is_at(handle, path):
            _sign(handle)
            return handle
        os.close(handle)  # its last holder has removed the file between our two calls: there is another by now


def _release(held: _Held | None) -> None:
    if held is None or held.process != os.getpid():
        return  # in a forked child the lock is still that of its parent
    held.users -= 1
    if held.users:
        return
    if _held.get(held.path) is held:
        del _held[held.path]
    with contextlib.suppress(OSError):
        if _is_at(held.handle, held.path):
            held.path.unlink()  # while we hold it: whoever waits for it looks again
    os.close(held.handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    """Write down who we are, for the message of others. On a full disk the lock holds all the same."""
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on host {socket.gethostname()} since {started}\n".encode(), 0)


def _in_use(path: Path) -> CheckpointError:
    with contextlib.suppress(OSError):
        who = path.read_text(encoding="utf-8", errors="replace").strip()
        if who:
            return CheckpointError(f"{path.parent} is in use by {who}; wait for it, or give another --out.")
    return CheckpointError(f"{path.parent} is in use by another process; wait for it, or give another --out.")


def _leave_to_parent() -> None:
    """In a forked child: close the handles, which does not unlock what the parent has locked."""
    for held in _held.values():
        with contextlib.suppress(OSError):
            os.close(held.handle)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
