"""What several verbs show on a terminal: scores of a run, and a bar for work that takes a while."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from relatum.errors import printable

T = TypeVar("T")
_SECONDS_BETWEEN_LINES = 30.0


def print_scores(run: Path, scores: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table, then a sentence for each split."""
    from relatum.report import comparison_table

    name, console = run.resolve().name, Console()
    console.print(comparison_table({f"{name} ({split})": entry for split, entry in scores.items()}))
    for split, entry in scores.items():
        console.print(printable(f"{split}: {_sentence(entry)}"), highlight=False, markup=False)


def print_pretraining(run: Path, scores: Mapping[str, Any]) -> None:
    """Print what a first stage came to, and what comes next."""
    for split, found in scores.items():
        print(
            f"{split}: {found.samples:,} images; loss on hidden patches {found.loss:.4f}, PSNR {found.psnr:.2f} dB"
            f" ({found.mask} mask, {found.ratio:.0%} hidden, {found.pixels} pixels)"
        )
    for picture in sorted((run / "pretrain" / "pictures").glob("*.png"))[-1:]:
        print(f"picture: {picture}")
    print(f"encoder: {run / 'pretrain' / 'encoder.safetensors'}")
    print("next: the same command without --stages fine-tunes it")


def _sentence(entry: Mapping[str, Any]) -> str:
    interval, worst, adjustment = entry["interval"], entry["worst_class"], entry["adjustment"]
    words = [f"{entry['samples']:,} images; top-1 {entry['top1']:.1%}"]
    if interval is not None:
        words[0] += f" ({interval['level']:.0%} interval {interval['low']:.1%} to {interval['high']:.1%})"
    words.append(f"balanced accuracy {entry['balanced_accuracy']:.1%}")
    if worst is not None:
        words.append(f"worst class {worst['name']} with {worst['accuracy']:.1%}")
    return ", ".join(words) + ("" if adjustment == "none" else f"; after training: {adjustment}")


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function `show(done, total)`: a bar on standard error, a line now and then if that is no terminal."""
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title).show
        return
    with Progress(console=console, transient=True) as progress:
        job = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(job, completed=done, total=total)


class _Lines:
    """How much is done and how long the rest will take, for a log; short work stays silent."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = self.last = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not done or now - self.last < _SECONDS_BETWEEN_LINES:
            return
        self.last = now
        minutes = (now - self.start) / done * (total - done) / 60
        print(printable(f"{self.title}: {done} of {total}, ETA {minutes:.1f} min"), file=sys.stderr, flush=True)


def tracked(rows: Iterable[T], total: int) -> Iterator[T]:
    """Pass `rows` on with a bar."""
    with bar("classifying") as show:
        for done, row in enumerate(rows, 1):
            show(done, total)
            yield row
