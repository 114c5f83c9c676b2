"""The comparison for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from relatum.errors import printable
from relatum.prior import GROUPS
from relatum.report.format import finite, percent
from relatum.report.records import RunRecord

_HEADS = ("All", "Many", "Medium", "Few", "ECE")


def comparison_table(runs: Sequence[RunRecord] | Mapping[str, Mapping[str, Any]], title: str | None = None) -> Table:
    """Return a table of All / Many / Medium / Few accuracy and ECE, in percent, the best of each column in bold.

    Args:
        runs: records, or scores (`Scores.to_dict()`) by run name.
        title: heading of the table.
    """
    named = _named(runs)
    scores = [found for _, found in named]
    table = Table(title=title, caption=_caption(scores), title_justify="left", caption_justify="left")
    table.add_column("run")
    for head in _HEADS:
        table.add_column(_header(head, scores), justify="right")
    values = [_values(found) for found in scores]
    for i, (name, _) in enumerate(named):
        cells = [
            Text(percent(value), style="bold" if _is_best(values, i, c) else "") for c, value in enumerate(values[i])
        ]
        table.add_row(Text(printable(name)), *cells)
    return table


def _named(runs: Sequence[RunRecord] | Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(runs, Mapping):
        return list(runs.items())
    return [(f"{run.name} ({state})" if (state := run.state()) else run.name, run.primary) for run in runs]


def _header(head: str, scores: Sequence[Mapping[str, Any]]) -> Text:
    if head.lower() not in GROUPS:
        return Text(head)
    sizes = {found.get("groups", {}).get(head.lower(), {}).get("classes") for found in scores if found}
    size = sizes.pop() if len(sizes) == 1 else None
    return Text(head if size is None else f"{head} ({size})")


def _values(scores: Mapping[str, Any]) -> list[float | None]:
    groups = [scores.get("groups", {}).get(name, {}).get("accuracy") for name in GROUPS]
    return [finite(value) for value in (scores.get("top1"), *groups, scores.get("ece"))]


def _is_best(values: Sequence[Sequence[float | None]], row: int, column: int) -> bool:
    """Equal when written is equal; where all rows are equal, none is best."""
    known = [value for line in values if (value := line[column]) is not None]
    mine = values[row][column]
    if mine is None or len(known) < 2:
        return False
    best = percent(min(known) if _HEADS[column] == "ECE" else max(known))
    return percent(mine) == best and any(percent(value) != best for value in known)


def _caption(scores: Sequence[Mapping[str, Any]]) -> Text:
    splits = list(dict.fromkeys(str(found["split"]) for found in scores if found.get("split")))
    rules = list(dict.fromkeys(str(found["rule"]) for found in scores if found.get("rule")))
    where = f" on {' and '.join(splits)}" if splits else ""
    groups = f"; shot rule {' and '.join(rules)}, classes per group in brackets" if rules else ""
    return Text(f"percent{where}{groups}")
