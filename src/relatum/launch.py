"""A verb in several processes: they meet, one of them speaks, and all end together. Without a launcher: not used.

Nothing heavy is imported here before it is needed, as in the command line itself.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

from relatum.errors import ConfigError

# The other verbs read runs and write small files: one process does that.
TOGETHER = ("train",)
_EXIT_FAILED = 1


def launched() -> bool:
    """Whether a launcher such as torchrun started several processes of this program."""
    text = os.environ.get("WORLD_SIZE", "")
    return text.isdecimal() and int(text) > 1


def run_together(run: Callable[[Callable[[], bool]], int]) -> NoReturn:
    """Run a verb as one of several processes, and end this process with its exit code.

    Args:
        run: runs it and returns its exit code; before it shows an error it asks the function it is given whether this
            process is the one to speak.
    """
    # Torch's own remarks, one from each process, are no faults; errors still come through. To be set before its import.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from relatum import processes

    try:
        code = run(processes.first_to_speak)
    except Exception as error:
        code = _EXIT_FAILED
        lost = processes.connection_lost(error)
        if processes.first_to_speak():
            print(f"relatum: error: {lost}" if lost else traceback.format_exc(), file=sys.stderr)
    processes.leave(code)


def meet(verb: str) -> None:
    """Meet the other processes of a verb that runs in several; others are refused."""
    from relatum import processes

    # First of all: from then on they can settle who shows an error, before a launcher ends them for another's.
    processes.join()
    if verb not in TOGETHER:
        raise ConfigError(f"relatum {verb} runs in one process; start it without torchrun.")
    if not processes.is_first():
        warnings.showwarning = lambda *_, **__: None  # the first process says the same
