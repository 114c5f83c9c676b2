"""What the runs of a sweep came to: one row per run, and mean and spread over the seeds of a point."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relatum.report.format import finite
from relatum.report.records import RunRecord, load_records
from relatum.sweep.record import Entry, Sweep, write_text
from relatum.sweep.state import status_of

FILE = "results.jsonl"
METRICS = ("All", "Many", "Medium", "Few", "ECE", "MCE", "NLL")
SELECTION = "last epoch"


@dataclass(frozen=True)
class Summary:
    """One point of the grid over its seeds.

    Args:
        name: name of the point.
        values: swept settings by key.
        seeds: seeds of the finished runs.
        means: mean of each metric over those seeds, as a fraction; None where a run does not define it.
        spreads: standard deviation (n - 1) of each metric; None with fewer than two seeds.
        states: how many runs are finished, failed, interrupted, waiting.
    """

    name: str
    values: Mapping[str, Any]
    seeds: tuple[int, ...]
    means: Mapping[str, float | None]
    spreads: Mapping[str, float | None]
    states: Mapping[str, int]


def collect(sweep: Sweep, failed: Collection[str]) -> list[dict[str, Any]]:
    """Return one row per run.

    Args:
        sweep: what there is to read.
        failed: names of the runs whose last start failed.
    """
    return [_row(sweep, entry, entry.name in failed) for entry in sweep.entries]


def failed_before(folder: Path) -> set[str]:
    """Return the runs that results.jsonl calls failed."""
    try:
        rows = [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]
        return {row["run"] for row in rows if row["status"] == "failed"}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none yet, or from another hand: a mere hint
        return set()


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write results.jsonl."""
    path = folder / FILE
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[Summary]:
    """Gather rows by point, in the order of their first run."""
    gathered: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        gathered.setdefault(row["point"], []).append(row)
    return [_summary(name, group) for name, group in gathered.items()]


def finished_records(sweep: Sweep) -> list[tuple[Entry, RunRecord]]:
    """Read the run directories of all finished runs."""
    done = [entry for entry in sweep.entries if status_of(sweep.folder / entry.name) == "finished"]
    return [(entry, load_records([sweep.folder / entry.name])[0]) for entry in done]


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there is no value or one of them is not defined."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def spread(values: Sequence[float | None]) -> float | None:
    """Return the standard deviation with n - 1, or None with fewer than two values or one that is not defined."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 and len(known) == len(values) else None


def _summary(name: str, rows: Sequence[Mapping[str, Any]]) -> Summary:
    done = [row for row in rows if row["status"] == "finished"]
    columns = {key: [finite(row[key]) for row in done] for key in METRICS}
    states: dict[str, int] = {}
    for row in rows:
        states[row["status"]] = states.get(row["status"], 0) + 1
    return Summary(
        name,
        rows[0]["values"],
        tuple(row["seed"] for row in done),
        {key: mean(values) for key, values in columns.items()},
        {key: spread(values) for key, values in columns.items()},
        states,
    )


def _row(sweep: Sweep, entry: Entry, failed: bool) -> dict[str, Any]:
    path = sweep.folder / entry.name
    status = status_of(path, failed)
    facts: dict[str, Any] = dict.fromkeys(("split", "rule", *METRICS, "seconds", "steps"))
    if status == "finished":
        facts |= _facts(load_records([path])[0])
    return {
        "run": entry.name,
        "point": entry.point.name,
        "values": sweep.values(entry.point),
        "seed": entry.seed,
        "status": status,
        "selection": SELECTION,
        "pretraining": entry.needs,
        **facts,
    }


def _facts(record: RunRecord) -> dict[str, Any]:
    scores = record.primary
    groups = {name.capitalize(): finite(found.get("accuracy")) for name, found in (scores.get("groups") or {}).items()}
    return {
        "split": record.split,
        "rule": scores.get("rule"),
        "All": finite(scores.get("top1")),
        **groups,
        **{key: finite(scores.get(key.lower())) for key in ("ECE", "MCE", "NLL")},
        "seconds": finite(record.manifest.get("seconds")),
        "steps": record.manifest.get("steps"),
    }
