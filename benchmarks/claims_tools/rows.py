"""results.jsonl: one row per finished run, the same for all claims."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims_tools.claim import RESULTS, Claim
from claims_tools.grids import Arm
from claims_tools.settings import arm_config, changed, essential, row_settings, run_config
from relatum.config import RunConfig
from relatum.errors import ConfigError
from relatum.files import append_line, write_atomically
from relatum.report.format import finite
from relatum.report.records import RunRecord, load_records

Row = dict[str, Any]
SCORES = ("All", "Many", "Medium", "Few", "ECE", "MCE", "NLL")


def read_rows(path: Path) -> list[Row]:
    """Read all rows; a file that is not there has none."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: not a row of results ({error}); delete the line.") from error
    return rows


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row, whole and on disk."""
    append_line(path, json.dumps(row))


def drop_rows(claim: Claim, words: Sequence[str]) -> int:
    """Remove rows, named as ARM or ARM:SEED, and return how many there were."""
    rows = read_rows(claim.results)
    kept = [row for row in rows if not {row["arm"], f"{row['arm']}:{row['seed']}"} & set(words)]
    for word in words:
        if not any(word in (row["arm"], f"{row['arm']}:{row['seed']}") for row in rows):
            raise ConfigError(f"{claim.results} has no row {word}; rows are named as ARM or ARM:SEED.")
    write_atomically(claim.results, "".join(json.dumps(row) + "\n" for row in kept).encode())
    return len(rows) - len(kept)


def require_matching(claim: Claim, rows: Sequence[Row]) -> None:
    """Refuse rows that are not what claim.toml asks for now: tables would compare what cannot be compared.

    Raises:
        ConfigError: names the first such row, what differs, and how to drop it.
    """
    settings = {arm.name: essential(arm_config(claim, arm)) for arm in claim.arms}
    met: set[tuple[str, int]] = set()
    for number, row in enumerate(rows, 1):
        key = (row["arm"], row["seed"])
        problem = ""
        if row["arm"] not in settings:
            problem = "claim.toml has no such arm"
        elif key in met:
            problem = "an earlier row has the same arm and seed"
        elif differs := changed(row["settings"], settings[row["arm"]]):
            problem = f"it was trained with other settings than claim.toml has now: {differs}"
        if problem:
            where = f"{claim.name}/{claim.results.name}, line {number} (arm {key[0]}, seed {key[1]})"
            raise ConfigError(f"{where}: {problem}. Mend claim.toml, or drop the row: {_cure(claim, *key)}")
        met.add(key)


def _cure(claim: Claim, arm: str, seed: int) -> str:
    if claim.results.name == RESULTS:
        return f"python benchmarks/claims/run.py {claim.name} --drop {arm}:{seed}"
    again = f"python benchmarks/claims/smoke.py {claim.name} --calibrate 0-2"
    return f"delete {claim.results.name} and record it anew: {again}"


def checked_rows(claim: Claim) -> list[Row]:
    """Read the rows of a claim and refuse those that do not match it."""
    rows = read_rows(claim.results)
    require_matching(claim, rows)
    return rows


def finished_keys(rows: Sequence[Row]) -> Collection[tuple[str, int]]:
    """Return arm and seed of every row."""
    return {(row["arm"], row["seed"]) for row in rows}


def run_row(claim: Claim, arm: Arm, seed: int, path: Path, stage: Path | None = None) -> Row:
    """Make the row of a finished run.

    Args:
        claim: what it was trained for.
        arm: the arm.
        seed: seed of the training.
        path: the run directory.
        stage: the directory of its first stage, which other runs may share; None without one.
    """
    record = load_records([path])[0]
    # What the run says, not the recipe: that may have changed while the run was training.
    manifest, config = record.manifest, run_config(path)
    hardware = manifest.get("hardware", {})
    return {
        "arm": arm.name,
        "seed": seed,
        "settings": row_settings(claim, arm, config),
        "status": manifest["status"],
        "selection": manifest.get("selection", "last epoch"),
        "split": record.split,
        "rule": record.rule,
        **_scores(record.primary),
        "epochs": config.train.epochs,
        "steps": manifest.get("steps"),
        "seconds": finite(manifest.get("seconds")),
        "pretraining": _stage(stage, config),
        "threads": hardware.get("threads"),
        "precision": manifest.get("precision"),
        "images_per_second": finite(manifest.get("images_per_second")),
        "parameters": manifest.get("parameters"),
        "hardware": {
            "cpu": hardware.get("processor"),
            "cores": hardware.get("cores"),
            "torch": manifest.get("versions", {}).get("torch"),
        },
    }


def _scores(scores: Mapping[str, Any]) -> dict[str, float | None]:
    groups = {name.capitalize(): finite(found.get("accuracy")) for name, found in (scores.get("groups") or {}).items()}
    own = {"All": finite(scores.get("top1")), **{key: finite(scores.get(key.lower())) for key in SCORES[4:]}}
    found = {key: {**own, **groups}.get(key) for key in SCORES}
    sigmoid = scores.get("sigmoid")
    return {**found, "sigmoid ECE": finite(sigmoid["ece"])} if sigmoid else found


def _stage(path: Path | None, config: RunConfig) -> dict[str, Any] | None:
    if path is None:
        return None
    record: RunRecord = load_records([path])[0]
    manifest = (record.pretrain or record).manifest
    return {"epochs": config.pretrain.epochs, "seconds": finite(manifest.get("seconds"))}
