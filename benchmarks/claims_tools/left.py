"""What is left of a claim, and for how long: by what finished runs of the same arm took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from claims_tools.claim import Claim
from claims_tools.grids import Arm
from claims_tools.rows import Row
from claims_tools.settings import arm_config
from relatum.sweep.runner import duration


def left_in_words(claim: Claim, rows: Sequence[Row], todo: Sequence[tuple[Arm, int]], jobs: int) -> str:
    """Say what is done and what is left, with an estimate of the time where there is something to go by."""
    total = sum(len(arm.seeds) for arm in claim.arms)
    lines = [f"{claim.name}: {len(rows)} of {total} runs have a row" + (", nothing to do." if not todo else ".")]
    for name in dict.fromkeys(arm.name for arm, _ in todo):
        lines.append(f"  {name}: seed {', '.join(str(seed) for arm, seed in todo if arm.name == name)}")
    known = [seconds for arm, _ in todo if (seconds := expected_seconds(claim, rows, arm)) is not None]
    if known:
        unknown = f", and {len(todo) - len(known)} that cannot be told yet" if len(known) < len(todo) else ""
        at_once = f", {jobs} at a time" if jobs > 1 else ""
        lines.append(f"about {duration(sum(known) / min(jobs, len(known)))} to go{at_once}{unknown}")
    return "\n".join(lines)


def expected_seconds(claim: Claim, rows: Sequence[Row], arm: Arm) -> float | None:
    """Return the time of a run: that of other seeds, else of other arms by their epochs; None if nothing is known."""
    timed = [row for row in rows if row.get("seconds")]
    same = [row["seconds"] for row in timed if row["arm"] == arm.name]
    if same:
        return fmean(same)
    epochs = arm_config(claim, arm).train.epochs
    return fmean(row["seconds"] * epochs / row["epochs"] for row in timed) if timed else None
