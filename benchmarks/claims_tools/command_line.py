"""What the scripts of benchmarks/claims share: options, and errors as one sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from relatum.errors import ConfigError, RelatumError

EXIT_ERROR = 2


def run_script(main: Callable[[], int]) -> None:
    """Run a script and end the process with its exit code; an error is one sentence and code 2."""
    try:
        code = main()
    except RelatumError as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_ERROR
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options about data, work and jobs."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.add_argument("--data", default=os.environ.get("RELATUM_DATA", ""), help="folder of all data sets")
    made.add_argument("--work", default="", help="directory for the runs; interrupted ones go on there")
    made.add_argument("--jobs", type=positive, default=2, help="runs at a time; they share the cores (default 2)")
    return made


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number of at least 1")
    return int(text)


def words(text: str) -> list[str]:
    """Split "a,b" into its words.

    >>> words("a, b")
    ['a', 'b']
    """
    found = [word.strip() for word in text.split(",") if word.strip()]
    if text and not found:
        raise ConfigError(f"'{text}' names nothing.")
    return found
