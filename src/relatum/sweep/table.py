"""The table of a sweep: for the terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from relatum.errors import printable
from relatum.report.format import NOT_AVAILABLE, setting
from relatum.sweep.grid import short_key
from relatum.sweep.record import Sweep, write_text
from relatum.sweep.results import METRICS, SELECTION, Summary

_MOST_COLUMNS = 2
_SHOWN = ("All", "Many", "Medium", "Few", "ECE")
_LOWER_IS_BETTER = ("ECE", "MCE", "NLL")


def terminal_table(sweep: Sweep, summaries: Sequence[Summary], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row per point: mean ± standard deviation in percent, the best mean of a column in bold."""
    states = [state(summary) for summary in summaries]
    same = len(set(states)) == 1
    words = Text(caption(summaries, rows) + (f"; seeds of each: {states[0]}" if same else ""))
    # Without side lines, and without blanks around ±, two keys and five means fit a terminal of 80 columns.
    table = Table(caption=words, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    heads, values_of = _point_columns(sweep)
    for head in heads:
        table.add_column(Text(printable(head)), overflow="fold")
    if not same:
        table.add_column("seeds", justify="right")
    for head in _SHOWN:
        table.add_column(head, justify="right", no_wrap=True)
    for summary in summaries:
        texts = [(cell(summary, head).replace(" ± ", "±"), _style(summaries, summary, head)) for head in _SHOWN]
        values = (Text(printable(text)) for text in values_of(summary))
        seeds = () if same else (Text(state(summary)),)
        table.add_row(*values, *seeds, *(Text(text, style=style) for text, style in texts))
    return table


def _point_columns(sweep: Sweep) -> tuple[list[str], Callable[[Summary], list[str]]]:
    """Return the heads of the columns that say where a point lies, and what stands in them.

    Three keys and more share one column, which a narrow terminal breaks between values instead of within words.
    """
    names = [short_key(key) for key in sweep.keys]

    def values(summary: Summary) -> list[str]:
        return [setting(summary.values[key]) for key in sweep.keys]

    if len(names) <= _MOST_COLUMNS:
        return names, values
    return [", ".join(names)], lambda summary: [", ".join(values(summary))]


def cell(summary: Summary, metric: str) -> str:
    """Write mean ± standard deviation: percent with one decimal, NLL with three; one seed has no ±."""
    mean, spread = summary.means[metric], summary.spreads[metric]
    if mean is None:
        return NOT_AVAILABLE if summary.seeds else ""
    factor, digits = (1.0, 3) if metric == "NLL" else (100.0, 1)
    text = f"{factor * mean:.{digits}f}"
    return text if spread is None else f"{text} ± {factor * spread:.{digits}f}"


def state(summary: Summary) -> str:
    """Write how many seeds are averaged, and what became of the others."""
    others = [f"{number} {word}" for word, number in summary.states.items() if word != "finished"]
    return ", ".join([*([str(len(summary.seeds))] if summary.seeds else []), *others])


def caption(summaries: Sequence[Summary], rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the numbers are."""
    splits = list(dict.fromkeys(str(row["split"]) for row in rows if row["split"]))
    rules = list(dict.fromkeys(str(row["rule"]) for row in rows if row["rule"]))
    where = f" on {' and '.join(splits)}" if splits else ""
    many = any(len(summary.seeds) > 1 for summary in summaries)
    what = "mean ± standard deviation (n - 1) over the seeds, " if many else ""
    groups = f"; shot rule {' and '.join(rules)}" if rules else ""
    return f"{what}percent{where}, {SELECTION}{groups}"


def write_tables(sweep: Sweep, summaries: Sequence[Summary], rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write table.md and table.csv."""
    markdown, separated = sweep.folder / "table.md", sweep.folder / "table.csv"
    write_text(markdown, _markdown(sweep, summaries, rows))
    write_text(separated, _csv(sweep, summaries))
    return [markdown, separated]


def _markdown(sweep: Sweep, summaries: Sequence[Summary], rows: Sequence[Mapping[str, Any]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    keys = sweep.keys
    lines = [line([*keys, "seeds", *METRICS]), "|" + "---|" * len(keys) + "---:|" * (1 + len(METRICS))]
    for summary in summaries:
        values = [setting(summary.values[key]) for key in keys]
        lines.append(line([*values, state(summary), *(cell(summary, head) for head in METRICS)]))
    seeds = sorted({seed for summary in summaries for seed in summary.seeds})
    words = f"{caption(summaries, rows)}; NLL in nats. Seeds: {', '.join(map(str, seeds)) or 'none finished'}."
    return "\n".join([*lines, "", f"Recipe `{sweep.recipe}`; {words}", ""])


def _csv(sweep: Sweep, summaries: Sequence[Summary]) -> str:
    """Percent as in the other tables, unrounded; NLL in nats."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = [name for head in METRICS for name in (head, f"{head} std")]
    writer.writerow([*sweep.keys, "n", "seeds", "failed", *heads])
    for summary in summaries:
        values = [setting(summary.values[key]) for key in sweep.keys]
        numbers = [_number(found[head], head) for head in METRICS for found in (summary.means, summary.spreads)]
        seeds = " ".join(map(str, summary.seeds))
        writer.writerow([*values, len(summary.seeds), seeds, summary.states.get("failed", 0), *numbers])
    return stream.getvalue()


def _number(value: float | None, metric: str) -> str:
    return "" if value is None else f"{value if metric == 'NLL' else 100 * value:.6g}"


def _style(summaries: Sequence[Summary], mine: Summary, metric: str) -> str:
    """Bold for the best mean as it is written; where all are equal, none is best."""
    known = [round(value, 3) for s in summaries if (value := s.means[metric]) is not None]
    value = mine.means[metric]
    if value is None or len(set(known)) < 2:
        return ""
    best = min(known) if metric in _LOWER_IS_BETTER else max(known)
    return "bold" if round(value, 3) == best else ""
