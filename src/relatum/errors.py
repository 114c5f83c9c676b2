"""Errors a user can mend: each message names the cause and the cure, and the command line shows no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RelatumError(Exception):
    """A problem in the user's input or surroundings. The command line prints it and exits with code 2."""


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
