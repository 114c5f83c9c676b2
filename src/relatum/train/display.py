"""What a person sees while training: a bar with ETA on a terminal, one row per epoch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Display:
    """Progress of one run.

    Args:
        title: short name of the run.
        quiet: show nothing.
        console: where to write; default standard error, so that results on standard output stay clean.
    """

    def __init__(self, title: str = "training", *, quiet: bool = False, console: Console | None = None) -> None:
        self.title = title
        self.quiet = quiet
        self.console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._job: Any = None

    def loading(self, done: int, total: int) -> None:
        """Show how many images have been decoded into memory."""
        if self.quiet or not self.console.is_terminal:
            return
        self.console.print(f"reading images {done}/{total}", end="\n" if done >= total else "\r", highlight=False)

    def start(self, total: int, done: int = 0) -> None:
        """Begin to show `total` steps of which `done` are behind us."""
        if self.quiet or not self.console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}"),
            TimeElapsedColumn(),
            TextColumn("ETA {task.fields[eta]}"),
            console=self.console,
            refresh_per_second=4,
        )
        self._bar.start()
        self._job = self._bar.add_task(self.title, total=total, completed=done, info="", eta="-:--:--")

    def step(self, done: int, info: str, eta_seconds: float) -> None:
        """Move the bar to `done` steps."""
        if self._bar is not None:
            left = timedelta(seconds=round(eta_seconds))
            self._bar.update(self._job, completed=done, info=info, eta=str(left))

    def epoch(self, number: int, epochs: int, values: Mapping[str, float | str], eta_seconds: float) -> None:
        """Print one row for a finished epoch where there is no bar; words are shown as they are."""
        if self._bar is None and not self.quiet:
            words = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
            self.say(f"{self.title}  epoch {number}/{epochs}  {words}  ETA {eta_seconds / 60:.1f} min")

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
