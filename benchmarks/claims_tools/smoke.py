"""Train the smallest variant of a claim and see whether its effect is still there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from claims_tools.claim import RESULTS, SMOKE_RESULTS, Claim
from claims_tools.rows import Row, checked_rows
from claims_tools.running import Options, run_claim
from claims_tools.smoke_spec import Smoke
from claims_tools.spread import by_seed
from relatum.errors import ConfigError

SPREADS = 4.0
LEAST_TOLERANCE = 1.0  # points; a few seeds can agree by chance


@dataclass(frozen=True)
class Verdict:
    """What a check came to.

    Args:
        kept: whether the effect is what the claim says.
        words: claim, expected, got, tolerance, in a sentence.
    """

    kept: bool
    words: str


def small_claim(claim: Claim, results: Path, seeds: Sequence[int] | None = None) -> tuple[Claim, Smoke]:
    """Return the smallest variant as a claim of its own, whose rows go to `results`, and what is asked of it."""
    if claim.smoke is None:
        raise ConfigError(f"{claim.name} has no [smoke] in its claim.toml.")
    smoke = claim.smoke
    chosen = tuple(smoke.seeds if seeds is None else seeds)
    arms = [claim.arm(name) for name in smoke.arms]
    small = tuple(replace(arm, settings={**arm.settings, **smoke.settings}, seeds=chosen) for arm in arms)
    generated = smoke.settings.get("data.kind") == "shapes"
    data = {"words": "generated shapes"} if generated else claim.data
    return replace(claim, arms=small, results=results, data=data), smoke


def calibrate(claim: Claim, options: Options, seeds: Sequence[int]) -> int:
    """Train the smallest variant with several seeds into smoke.jsonl: what later checks are held against."""
    return run_claim(small_claim(claim, claim.folder / SMOKE_RESULTS, seeds)[0], options)


def check(claim: Claim, options: Options) -> Verdict:
    """Train the smallest variant anew and compare its effect with the recorded one."""
    recorded, smoke = small_claim(claim, claim.folder / SMOKE_RESULTS)
    expected = effects(smoke, checked_rows(recorded))
    if len(expected) < 2:
        raise ConfigError(
            f"{claim.name}: {SMOKE_RESULTS} has fewer than two seeds of both arms; record them first: "
            f"python benchmarks/claims/smoke.py {claim.name} --calibrate 0-2"
        )
    small, _ = small_claim(claim, options.work / RESULTS)
    code = run_claim(small, options)
    got = effects(smoke, checked_rows(small))
    if code or len(got) < len(smoke.seeds):
        return Verdict(False, f"{claim.name}: the smallest variant could not be trained.")
    return judge(claim.name, smoke, expected, statistics.fmean(got))


def effects(smoke: Smoke, rows: Sequence[Row]) -> list[float]:
    """Return the effect of every seed that both arms have."""
    one, two = (by_seed(rows, arm, smoke.column) for arm in smoke.effect)
    return [one[seed] - two[seed] for seed in one if seed in two]


def judge(name: str, smoke: Smoke, recorded: Sequence[float], got: float) -> Verdict:
    """Compare an effect with what was recorded.

    The tolerance is four recorded standard deviations, and a point at least. An effect must not fall below what was
    recorded by more than that, nor to `above`; where there is to be none, it must stay within `within` of zero.
    """
    mean, std = statistics.fmean(recorded), statistics.stdev(recorded)
    tolerance = max(SPREADS * std, LEAST_TOLERANCE)
    what = f"{name}: {smoke.effect[0]} - {smoke.effect[1]} in {smoke.column}"
    seen = f"expected {mean:+.2f} (standard deviation {std:.2f} of {len(recorded)} seeds), got {got:+.2f}"
    if smoke.within is not None:
        kept, rule = abs(got) <= smoke.within, f"must stay within ±{smoke.within:g}"
    else:
        least = max(smoke.above or 0.0, mean - tolerance)
        kept, rule = got > least, f"must stay above {least:+.2f} (tolerance {tolerance:.2f})"
    return Verdict(kept, f"{what}: {seen}, {rule}: {'kept' if kept else 'THE EFFECT IS NOT WHAT IT WAS'}")
