"""Numbers as they stand in the cells of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from claims_tools.rows import Row
from claims_tools.spread import NAT_COLUMNS, Difference, Estimate
from relatum.report.format import DASH


def line(cells: Sequence[str]) -> str:
    """Write one line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Write a Markdown table; behind the first `words` columns, numbers stand to the right."""
    rule = "|" + "---|" * words + "---:|" * (len(heads) - words)
    return "\n".join([line(heads), rule, *map(line, rows)])


def value(found: Estimate | None, column: str, digits: int = 1) -> str:
    """Write mean ± standard deviation; one seed has no ±."""
    if found is None:
        return DASH
    places = _places(column, digits)
    text = f"{found.mean:.{places}f}"
    return text if found.std is None else f"{text} ± {found.std:.{places}f}"


def signed(found: Difference | None, column: str, digits: int = 1) -> str:
    """Write a difference ± its standard error, and whether the seeds were paired."""
    if found is None:
        return DASH
    places = _places(column, digits)
    text = f"{found.mean:+.{places}f}"
    if found.error is None:
        return f"{text} (one seed)"
    return f"{text} ± {found.error:.{places}f}" + ("" if found.paired else " (unpaired)")


def core_minutes(rows: Sequence[Row], arm: str) -> str:
    """Write the minutes of a run times its threads, and those of its first stage behind a plus; medians over seeds.

    A run of one thread beside another takes twice as long as with two, and a run that waited much longer: neither
    makes a method dearer.
    """
    mine = [row for row in rows if row["arm"] == arm]
    stages = [(row["pretraining"], row["threads"]) for row in mine if row.get("pretraining")]
    own = _median_minutes([(row.get("seconds"), row.get("threads")) for row in mine])
    if not stages:
        return own
    return f"{own} + {_median_minutes([(stage.get('seconds'), threads) for stage, threads in stages])}"


def _median_minutes(spent: Sequence[tuple[float | None, int | None]]) -> str:
    known = [seconds * threads for seconds, threads in spent if seconds and threads]
    if not known or len(known) < len(spent):
        return DASH
    middle = median(known) / 60
    return f"{middle:.1f}" if middle < 10 else f"{middle:.0f}"


def _places(column: str, digits: int) -> int:
    return digits + 2 if column in NAT_COLUMNS else digits
