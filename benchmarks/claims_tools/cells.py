"""Numbers as they stand in the cells of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

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


def minutes(rows: Sequence[Row], arm: str) -> str:
    """Write the mean minutes of a run, and those of its first stage behind a plus."""
    mine = [row for row in rows if row["arm"] == arm]
    stages = [row["pretraining"] for row in mine if row.get("pretraining")]
    own, first = _mean_minutes([row.get("seconds") for row in mine]), ""
    if stages:
        first = " + " + _mean_minutes([stage.get("seconds") for stage in stages])
    return own + first


def _mean_minutes(seconds: Sequence[float | None]) -> str:
    known = [number for number in seconds if number]
    if not known or len(known) < len(seconds):
        return DASH
    mean = fmean(known) / 60
    return f"{mean:.1f}" if mean < 10 else f"{mean:.0f}"


def _places(column: str, digits: int) -> int:
    return digits + 2 if column in NAT_COLUMNS else digits
