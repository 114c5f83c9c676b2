"""`relatum classifier RUN`: try the second-stage tools on a trained run, and keep one if asked."""

from __future__ import annotations

import json as json_format
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from relatum.arguments import call
from relatum.errors import ConfigError
from relatum.terminal import bar
from relatum.verbs import Flag, MaybePath, Run

if TYPE_CHECKING:
    from relatum.classifier.runs import TunedRun
    from relatum.classifier.tools import Retuned
    from relatum.evaluate import Scores

Method = Literal["crt", "lws", "tau-norm", "disalign", "logit-adjustment", "temperature"]
Methods = Annotated[tuple[Method, ...], tyro.conf.arg(metavar="METHOD ...", help_behavior_hint="(default: all)")]
ALL: tuple[Method, ...] = ("crt", "lws", "tau-norm", "disalign", "logit-adjustment", "temperature")
MAX_SEED = 2**32 - 1


def classifier(args: list[str]) -> int:
    """`relatum classifier RUN`."""

    def run(
        run: Run,
        /,
        methods: Methods = ALL,
        out: MaybePath = None,
        seed: int = 0,
        data_root: MaybePath = None,
        json: Flag = False,
    ) -> int:
        """Give a trained run a better classifier for its rare classes, in seconds; the backbone stays as it is.

        Settings are chosen on the split val if there is a test split to report on, else on a share of the training
        images; never on what is reported.

        Args:
            run: run directory.
            methods: any of crt, lws, tau-norm, disalign, logit-adjustment, temperature.
            out: write the run with the new classifier here; needs exactly one method, not disalign.
            seed: of the hold-out, the initial weights and the order of the samples.
            data_root: where the data is now, if it has moved.
            json: print everything as JSON.
        """
        _check(run, methods, out, seed)
        from relatum.classifier.runs import retune_run, write_run

        with bar("computing features") as show:
            tuned = retune_run(run, methods, seed=seed, data_root=str(data_root or ""), progress=show)
        written = None if out is None else write_run(tuned, methods[0], out)
        if json:
            place = {} if written is None else {"out": str(written)}
            print(json_format.dumps({**tuned.to_dict(), **place}, indent=1))
            return 0
        _print(tuned)
        if written is not None:
            print(f"run:  {written}\nnext: relatum report {shlex.quote(str(run))} {shlex.quote(str(written))}")
        return 0

    return call(run, "relatum classifier", args)


def _check(run: Path, methods: Sequence[str], out: Path | None, seed: int) -> None:
    """All that can be said before anything is read."""
    if run.is_file():
        raise ConfigError(f"{run} is a file; relatum classifier needs the run directory, which names the data.")
    if not methods or len(set(methods)) < len(methods):
        raise ConfigError("--methods needs at least one method, each once (see relatum classifier --help).")
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed is {seed}; it must be between 0 and {MAX_SEED}.")
    if out is None:
        return
    if len(methods) != 1:
        raise ConfigError(f"--out writes one classifier, not {len(methods)}; choose it, for example --methods crt.")
    if methods[0] == "disalign":
        raise ConfigError(
            "disalign cannot be folded into a plain model, because its gate depends on the image; "
            "--out takes crt, lws, tau-norm, logit-adjustment or temperature."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; give --out a new directory.")


def _print(tuned: TunedRun) -> None:
    console = Console()
    for split in tuned.features.reported:
        console.print(_table(tuned, split))
    # Plain lines: a terminal wraps them, and a file keeps them whole.
    if any(result.chosen for result in tuned.results.values()):
        place = "val" if tuned.features.held_from == "val" else "a share of the training images"
        print(f"chosen on {place} ({len(tuned.features.held):,} images), all classes counting alike")
    for note in tuned.notes:
        print(f"note: {note}")


def _table(tuned: TunedRun, split: str) -> Table:
    from relatum.report.format import percent

    first = next(iter(tuned.results.values())).scores[split]
    caption = f"percent on {split}, {first.samples:,} images; shot rule {first.rule}, classes per group in brackets"
    # Without side lines the names stay whole on a terminal of 80 columns.
    table = Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("classifier", no_wrap=True)
    for head in first.row():
        table.add_column(_header(first, head), justify="right")
    table.add_column("chosen")
    table.add_column("seconds", justify="right")
    for name, result in tuned.results.items():
        values = [percent(value) for value in result.scores[split].row().values()]
        table.add_row(name, *values, _chosen(result), f"{result.seconds:.1f}" if len(table.rows) else "")
    return table


def _header(scores: Scores, head: str) -> str:
    group = scores.groups.get(head.lower())
    return head if group is None else f"{head} ({group['classes']})"


def _chosen(result: Retuned) -> str:
    return ", ".join(f"{'T' if name == 'value' else name} {value:.3g}" for name, value in result.chosen.items())
