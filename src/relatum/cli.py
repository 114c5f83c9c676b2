"""The command line: verbs only; each calls one function of a room.

Nothing heavy is imported before a verb is known, so that `relatum --help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from relatum import __version__
from relatum.errors import ConfigError, RelatumError, suggest

VERBS = {
    "demo": "train three small models on a generated long-tailed world and compare them",
    "inspect": "look at a folder, CSV or CIFAR directory before training: counts, rare classes, bad files, advice",
    "recipes": "list the recipes; show or copy one",
    "train": "train a recipe on your data; rerunning the same command resumes",
    "evaluate": "score a trained run again, with other shot rules or post-hoc corrections",
    "predict": "classify image files or folders with a trained run",
    "report": "one HTML page about one or several runs",
    "export": "write the plain model for others: timm folder, torch.export, ONNX",
}
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run a verb and return the exit code; errors that a user can mend are one message and code 2."""
    args = sys.argv[1:] if argv is None else argv
    warnings.showwarning = _show_warning
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"relatum {__version__}")
        return 0
    try:
        return _verb(args[0])(args[1:]) or 0
    except RelatumError as error:
        print(f"relatum: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("relatum: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def overview() -> str:
    """The text of `relatum --help`."""
    verbs = "\n".join(f"  {name:<10}{words}" for name, words in VERBS.items())
    return (
        f"relatum {__version__}: train on scarce, imbalanced images; samples learn from each other while training.\n\n"
        f"usage: relatum VERB ...\n\n{verbs}\n\n"
        "relatum VERB --help explains a verb. Start with: relatum demo, or: relatum inspect YOUR_FOLDER"
    )


def _verb(name: str) -> Callable[[list[str]], int | None]:
    if name not in VERBS:
        raise ConfigError(f"unknown verb '{name}'; {suggest(name, VERBS)}")
    from relatum import verbs

    function: Callable[[list[str]], int | None] = getattr(verbs, name)
    return function


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Show our own warnings as one line; a stranger's deprecation is not the user's business here."""
    if issubclass(category, UserWarning):
        print(f"relatum: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
