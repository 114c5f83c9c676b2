"""The command line: verbs only; each calls one function of a room.

Nothing heavy is imported before a verb is known, so that `relatum --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from relatum import __version__, stopping
from relatum.errors import ConfigError, RelatumError, printable, suggest
from relatum.launch import launched, meet, run_together
from relatum.out_of_memory import is_out_of_memory

VERBS = {
    "demo": "train three small models on a generated long-tailed world",
    "inspect": "look before training: class counts, rare classes, bad files",
    "recipes": "list the recipes; show or copy one",
    "train": "train a recipe on your data; rerunning the same command resumes",
    "sweep": "run a grid of settings and seeds: table, figures, report",
    "evaluate": "score a trained run again, with other shot rules or corrections",
    "probe": "judge an encoder by k-NN and a linear probe",
    "classifier": "give a trained run a better classifier for its rare classes",
    "predict": "classify image files or folders with a trained run",
    "report": "write one HTML page about one or several runs",
    "export": "write the plain model for others: timm folder, torch.export, ONNX",
    "bench": "measure how fast this machine trains, and what slows it",
}
EXIT_USER_ERROR = 2


def main(argv: list[str] | None = None) -> int:
    """Run a verb and return the exit code; errors that a user can mend are one message and code 2."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"relatum {__version__}")
        return 0
    with warnings.catch_warnings(), stopping.stoppable():
        warnings.showwarning = _show_warning
        if launched():
            run_together(lambda speaks: _run(args[0], args[1:], speaks))
        return _run(args[0], args[1:])


def _run(name: str, args: list[str], speaks: Callable[[], bool] = lambda: True) -> int:
    """Run a verb; `speaks` tells whether it is for this process to show an error."""
    try:
        if launched():
            meet(name)
        code = _verb(name)(args) or 0
        sys.stdout.flush()  # here, so that a full disk or a closed pipe is met inside this try
        return code
    except SystemExit as stop:  # tyro has shown a help page (0) or an error (2)
        return stop.code if isinstance(stop.code, int) else EXIT_USER_ERROR if stop.code else 0
    except KeyboardInterrupt:
        if speaks():
            print("relatum: interrupted", file=sys.stderr)
        return stopping.exit_code()
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except Exception as error:
        message = _words(error)
        if message is None:
            raise
        if speaks():
            print(f"relatum: error: {message}", file=sys.stderr)
        return EXIT_USER_ERROR


def overview() -> str:
    """The text of `relatum --help`."""
    verbs = "\n".join(f"  {name:<12}{words}" for name, words in VERBS.items())
    return (
        f"relatum {__version__}: train on scarce, imbalanced images; samples learn from each\n"
        "other while training.\n\n"
        f"usage: relatum VERB ...\n\n{verbs}\n\n"
        "relatum VERB --help explains a verb.\n"
        "Start with: relatum demo, or: relatum inspect YOUR_FOLDER"
    )


def _verb(name: str) -> Callable[[list[str]], int | None]:
    if name not in VERBS:
        raise ConfigError(f"unknown verb '{name}'; {suggest(name, VERBS)}")
    from relatum import verbs

    function: Callable[[list[str]], int | None] = getattr(verbs, name)
    return function


def _words(error: Exception) -> str | None:
    """What to say of an error that lies with the user's input or machine; None for one that is ours."""
    if isinstance(error, RelatumError):
        return str(error)
    if is_out_of_memory(error):
        return "out of memory; lower --data.batch-size or --data.image-size, or set --data.memory never."
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return printable(f"{place}{error.strerror or error}.")
    return None


def _silence_stdout() -> None:
    """Whoever read our output has left: let Python's last flush go nowhere instead of complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line; what other packages grumble is not the user's business here."""
    issuer = sys._getframe(1)
    while issuer.f_back is not None and issuer.f_globals.get("__name__") == "warnings":
        issuer = issuer.f_back
    ours = str(issuer.f_globals.get("__name__", "")).partition(".")[0] == "relatum"
    if ours and issubclass(category, UserWarning):
        print(f"relatum: warning: {printable(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
