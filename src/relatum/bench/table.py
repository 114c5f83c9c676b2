"""The tables of `relatum bench`."""

from __future__ import annotations

from rich import box
from rich.table import Table

from relatum.bench.measure import Spread
from relatum.bench.results import BESIDE, Bar, Result
from relatum.bench.speed import LOOP, RESIDENT, USUAL

_WAYS = {LOOP: "with real input", RESIDENT: "on a resident batch", USUAL: "the usual way"}


def speed_table(result: Result) -> Table:
    """Images per second of the three ways, then of each setting."""
    title = f"{result.name}: batch {result.batch}, {result.precision}, {_threads(result.threads)}"
    table = Table(title=title, title_justify="left")
    table.add_column("images/s")
    for head in ("median", "smallest", "largest"):
        table.add_column(head, justify="right")
    table.add_column("")
    for way, words in _WAYS.items():
        table.add_row(words, *_numbers(Spread.of(result.speeds[way])), "")
    table.add_section()
    for setting, values in result.settings.items():
        marks = [("auto", result.rule), ("fastest", result.fastest)]
        mark = ", ".join(words for words, marked in marks if marked == setting)
        table.add_row(f"{setting[0]}, {_threads(setting[1])}", *_numbers(Spread.of(values)), mark)
    return table


def bar_table(results: list[Result]) -> Table:
    """Every bar of every subject, met or missed."""
    table = Table(title="bars", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in ("what", "model"):
        table.add_column(head)
    for head in ("measured", "rounds", "bar"):
        table.add_column(head, justify="right")
    table.add_column("")
    rows = [(bar, result, found) for result in results for bar, found in result.bars]
    for bar in dict.fromkeys(bar for bar, _, _ in rows):
        for _, result, found in (row for row in rows if row[0] == bar):
            verdict = "[green]met[/green]" if bar.met(found.median) else "[red]missed[/red]"
            words = "" if result is not results[0] else bar.words
            table.add_row(words, result.name, _value(bar, found.median), _range(bar, found), _limit(bar), verdict)
        table.add_section()
    return table


def beside_sentence(result: Result) -> str:
    """What the share of evaluation and checkpoints is made of."""
    beside, epochs = result.beside, f"{result.epochs} epoch{'' if result.epochs == 1 else 's'}"
    return (
        f"{result.name}: a run of {epochs} takes {beside.training / 60:.1f} minutes of steps at this speed, "
        f"{beside.evaluations} evaluations of {beside.evaluation:.2f} s and a last one of {beside.last:.2f} s, "
        f"{beside.checkpoints} checkpoints of {beside.checkpoint:.3f} s."
    )


def _numbers(found: Spread) -> tuple[str, str, str]:
    return f"{found.median:.0f}", f"{found.low:.0f}", f"{found.high:.0f}"


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def _value(bar: Bar, value: float) -> str:
    if bar == BESIDE:
        return f"{value:.1%}"
    return f"{value:.3f}" if bar.least else f"{value:.1f} s"


def _range(bar: Bar, found: Spread) -> str:
    return "" if found.rounds == 1 else f"{_value(bar, found.low)}-{_value(bar, found.high)}"


def _limit(bar: Bar) -> str:
    limit = f"{bar.limit:.0%}" if bar == BESIDE else f"{bar.limit:g}" if bar.least else f"{bar.limit:g} s"
    return f"{'≥' if bar.least else '<'} {limit}"
