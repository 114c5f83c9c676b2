"""Errors a user can mend: each message names the cause and the cure, and the command line shows no traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Control characters, by which a name could steer a terminal; marks that reverse the reading order; lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_MESSAGE = 4000


class RelatumError(Exception):
    """A problem in the user's input or surroundings. The command line prints it and exits with code 2."""

    def __str__(self) -> str:
        """The message, fit to be shown: it may quote names from files of strangers."""
        text = printable(super().__str__())
        return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} …"


def printable(text: str) -> str:
    r"""Return `text` with control characters written as escapes, so that a file's name cannot steer a terminal.

    >>> printable("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


class ConfigError(RelatumError):
    """A recipe, key or value that is not valid."""


class DataError(RelatumError):
    """Missing, empty, mislabelled or unreadable data."""


class ModelError(RelatumError):
    """A model that cannot be built, loaded, attached to or exported."""


class CheckpointError(RelatumError):
    """A run directory or checkpoint that cannot be written or read."""


class TrainingError(RelatumError):
    """Training had to stop, for example at a loss that is not finite."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """Return the end of an error sentence: the nearest valid name if there is one, and all names if they are few.

    >>> suggest("focall", ["focal", "ldam"])
    "did you mean 'focal'? valid: focal, ldam"
    """
    known = sorted(choices)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    parts = [f"did you mean '{near[0]}'?"] if near else []
    if len(known) <= 20:
        parts.append("valid: " + ", ".join(known))
    return " ".join(parts)
