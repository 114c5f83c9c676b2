"""The one table of all claims, for the README of the project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from claims_tools import cells
from claims_tools.claim import Claim
from claims_tools.rows import Row
from claims_tools.spread import by_seed, estimate
from relatum.report.format import DASH

_HEADS = ("claim", "our trial", "arm", "All", "Few", "seeds", "core minutes", "published All")


def overview_table(claims: Sequence[tuple[Claim, Sequence[Row]]], page: Path) -> str:
    """Return the table as Markdown, one line for each arm that a claim names in `overview`.

    Args:
        claims: every claim with its rows.
        page: the file that gets the table; links start there.
    """
    lines = [line for claim, rows in claims for line in _lines(claim, rows, page)]
    note = (
        "Percent of a balanced test set, last epoch, mean ± standard deviation (n - 1) over seeds; core minutes: "
        "minutes of a run times its threads, median over seeds, + of its first stage. Published numbers are of the "
        "papers' own, larger settings, most of the best epoch on the test set."
    )
    return f"{cells.table(_HEADS, lines, words=3)}\n\n{note}"


def _lines(claim: Claim, rows: Sequence[Row], page: Path) -> list[list[str]]:
    link = Path(os.path.relpath(claim.folder / "README.md", page.parent)).as_posix()
    heads = [f"[{claim.title}]({link}): {claim.verdict}", claim.setting]
    lines = []
    for arm in claim.select(claim.overview):
        numbers = [cells.value(estimate(by_seed(rows, arm.name, column)), column) for column in ("All", "Few")]
        seeds = sum(row["arm"] == arm.name for row in rows)
        published = claim.published.get("values", {}).get(arm.name, DASH)
        lines.append([*heads, arm.label, *numbers, str(seeds), cells.core_minutes(rows, arm.name), str(published)])
        heads = ["", ""]
    return lines
