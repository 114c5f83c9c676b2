"""The tables of a claim, from its rows: one line per arm, mean ± standard deviation, differences to a base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claims_tools import cells
from claims_tools.claim import Claim
from claims_tools.grids import Arm
from claims_tools.rows import SCORES, Row
from claims_tools.spread import by_seed, difference, estimate
from relatum.errors import ConfigError, suggest

DEFAULT_COLUMNS = ("All", "Many", "Medium", "Few", "ECE")
COLUMNS = (*SCORES, "sigmoid ECE")


def claim_table(claim: Claim, rows: Sequence[Row], name: str = "") -> str:
    """Return a table of a claim as Markdown, with a line about what the numbers are.

    Args:
        claim: the claim.
        rows: its rows.
        name: which of its [[table]] parts; empty for all arms with the usual columns.
    """
    if name and name not in claim.tables:
        raise ConfigError(f"{claim.name} has no table '{name}'; {suggest(name, claim.tables)}".rstrip("; "))
    spec = claim.tables.get(name, {})
    columns = known_columns(spec.get("columns", DEFAULT_COLUMNS), claim.name)
    compared = known_columns(spec.get("difference", ["All"]), claim.name) if "base" in spec else []
    arms = [arm for arm in claim.select(spec.get("arms", ())) if any(row["arm"] == arm.name for row in rows)]
    bases = {arm.name: base_of(claim, arm, spec["base"]) for arm in arms} if compared else {}
    heads = [spec.get("head", "arm"), *columns]
    heads += [f"{column} - {base_label(claim, spec['base'])}" for column in compared]
    lines = []
    for arm in arms:
        numbers = _numbers(rows, arm, bases.get(arm.name), columns, compared, spec.get("digits", 1))
        seeds = str(sum(row["arm"] == arm.name for row in rows))
        lines.append([arm.label, *numbers, seeds, cells.core_minutes(rows, arm.name)])
    used = {arm.name for arm in arms} | {base.name for base in bases.values() if base}
    note = caption([row for row in rows if row["arm"] in used], bool(compared))
    return f"{cells.table([*heads, 'seeds', 'core minutes'], lines)}\n\n{note}"


def _numbers(
    rows: Sequence[Row], arm: Arm, base: Arm | None, columns: Sequence[str], compared: Sequence[str], digits: int
) -> list[str]:
    """Return the cells of an arm: its own numbers, then what it has more than its base, if it has one."""
    own = [cells.value(estimate(by_seed(rows, arm.name, column)), column, digits) for column in columns]
    if base is None:
        return [*own, *("" for _ in compared)]
    pairs = [(by_seed(rows, arm.name, column), by_seed(rows, base.name, column)) for column in compared]
    gains = [cells.signed(difference(*pair), column, digits) for pair, column in zip(pairs, compared, strict=True)]
    return [*own, *gains]


def base_of(claim: Claim, arm: Arm, base: str | Mapping[str, str]) -> Arm | None:
    """Return what an arm is compared with: one arm by name, or its neighbour in the grid, {axis = part}.

    None where an arm is its own base, or has no such neighbour.
    """
    if isinstance(base, str):
        found = claim.arm(base)
        return None if found.name == arm.name else found
    unknown = [axis for axis in base if not any(axis in other.parts for other in claim.arms)]
    if unknown:
        raise ConfigError(f"{claim.name}: base names the axis '{unknown[0]}', which no grid has.")
    if not base.keys() <= arm.parts.keys():
        return None
    wanted = {**arm.parts, **base}
    met = [other for other in claim.arms if other.grid == arm.grid and other.parts == wanted]
    return met[0] if met and met[0].name != arm.name else None


def known_columns(columns: Sequence[str], where: str) -> list[str]:
    """Return the columns; one that no row can have is an error."""
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(f"{where}: unknown column '{column}'; {suggest(column, COLUMNS)}")
    return list(columns)


def caption(rows: Sequence[Row], compared: bool) -> str:
    """Say what the numbers are, and where they were measured."""
    if not rows:
        return "No run has a row yet."
    splits, selections = (" and ".join(_distinct(row[key] for row in rows)) for key in ("split", "selection"))
    words = [f"Percent on {splits}, {selections}, mean ± standard deviation (n - 1) over seeds"]
    if compared:
        words.append(
            "differences with their standard error, paired by seed unless marked (same seeds: mean of the differences)"
        )
    words.append(
        "core minutes: minutes of a run times its threads, median over seeds"
        + (", + of its first stage" if any(row.get("pretraining") for row in rows) else "")
    )
    return "; ".join([*words, *_hardware(rows)]) + "."


def _hardware(rows: Sequence[Row]) -> list[str]:
    threads = _distinct(row.get("threads") for row in rows)
    counted = f"{' or '.join(threads)} thread{'' if threads == ['1'] else 's'} on " if threads else ""
    precisions = " or ".join(_distinct(row.get("precision") for row in rows))
    named = []
    for row in rows:
        found = row.get("hardware") or {}
        parts = [f"{found['cores']} cores" if found.get("cores") else "", found.get("cpu") or ""]
        named.append(
            " of ".join(part for part in parts if part) + (f", torch {t}" if (t := found.get("torch")) else "")
        )
    machines = _distinct(name for name in named if name)
    return [counted + " and ".join(machines) + (f", {precisions}" if precisions else "")] if machines else []


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value is not None))


def base_label(claim: Claim, base: str | Mapping[str, str]) -> str:
    """Return how a base is called."""
    if isinstance(base, str):
        return claim.arm(base).label
    return ", ".join(part_label(claim, axis, name) for axis, name in base.items())


def part_label(claim: Claim, axis: str, name: str) -> str:
    """Return how a part of a grid is called."""
    return next((arm.words[axis] for arm in claim.arms if arm.parts.get(axis) == name), name)
