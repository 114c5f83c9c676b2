"""The wish to stop: Ctrl-C, SIGTERM, a terminal that closes. Which of them came, and what the shell is told of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from relatum.launch import launched

PARENT = "RELATUM_SWEEP_PID"
_LOOK_EVERY = 0.5
_PR_SET_PDEATHSIG = 1
# Signals belong to the process, and so does what is known of them.
_received: list[int] = []


def stop_signals() -> tuple[int, ...]:
    """Return the signals that mean stop; the closing of the terminal is none of them under nohup."""
    hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangup else ()))


def note(number: int) -> None:
    """Remember that this signal came; every handler of a stop signal calls this."""
    _received.append(number)
    if number == signal.SIGHUP:
        _turn_from_terminal()


def exit_code() -> int:
    """Return the exit code of a program that was asked to stop: 128 plus the first signal, 130 for Ctrl-C."""
    return 128 + (_received[0] if _received else signal.SIGINT)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and a closing terminal end a command as Ctrl-C does: by a KeyboardInterrupt, files closed on the way.

    Where there is something to save, the training loop puts its own handlers in the place of these for that time.
    """
    _received.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in stop_signals() if signal.getsignal(number) == signal.SIG_DFL]
    before: dict[int, Any] = {number: signal.signal(number, _interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_next(words: Sequence[str]) -> None:
    """Print the command that goes on from here, ready to be pasted into a shell; of several processes one does."""
    command = shlex.join(["relatum", *words])
    if launched():
        if os.environ.get("RANK", "0") != "0":
            return
        command = f"torchrun … -m {command}  (as it was started)"
    try:
        print(f"next: {command}", flush=True)
    except OSError:  # whoever reads our output was stopped by the same Ctrl-C: the exit code must not suffer
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def follow_parent() -> None:
    """End with the sweep that started this process, however the sweep ends: SIGTERM, so that a run saves first."""
    parent = os.environ.pop(PARENT, "")
    if not parent.isdecimal():
        return
    if not _signal_at_parents_death():
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it died before we looked
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    note(number)
    raise KeyboardInterrupt


def _turn_from_terminal() -> None:
    """Write nothing more to a terminal that is gone: each word would be an error. Files and pipes stay as they are."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for place in (1, 2):
            if stat.S_ISCHR(os.fstat(place).st_mode):
                os.dup2(nowhere, place)
        os.close(nowhere)


def _signal_at_parents_death() -> bool:
    """Ask Linux for SIGTERM when the parent dies; False where that cannot be had."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)
