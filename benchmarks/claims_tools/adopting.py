"""Take in runs that were trained by hand or by a sweep: if their settings are those of an arm, they get its row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from claims_tools.claim import Claim
from claims_tools.rows import append_row, checked_rows, finished_keys, run_row
from claims_tools.settings import arm_config, changed, essential, run_config
from relatum.errors import ConfigError
from relatum.report.records import RunRecord, load_records


def adopt(claim: Claim, paths: Sequence[Path]) -> int:
    """Append rows for the finished runs in run directories or folders of them; return how many."""
    done = set(finished_keys(checked_rows(claim)))
    taken = 0
    for record in load_records(paths):
        if record.only_pretrained or record.state():
            print(f"{record.path}: left out, {record.state() or 'a first stage'}")
            continue
        key = (_arm(claim, record), int(record.seed or 0))
        if key in done:
            print(f"{record.path}: left out, arm {key[0]} has a row of seed {key[1]}")
            continue
        append_row(claim.results, run_row(claim, claim.arm(key[0]), key[1], record.path, _stage(record)))
        done.add(key)
        taken += 1
        print(f"{record.path}: arm {key[0]}, seed {key[1]}")
    return taken


def _arm(claim: Claim, record: RunRecord) -> str:
    """Return the arm that has the settings of a run."""
    mine = essential(run_config(record.path))
    differs = {arm.name: changed(mine, essential(arm_config(claim, arm))) for arm in claim.arms}
    same = [name for name, words in differs.items() if not words]
    if not same:
        nearest = min(differs, key=lambda name: differs[name].count("; "))
        raise ConfigError(
            f"{record.path} has the settings of no arm of {claim.name}; nearest is {nearest}: {differs[nearest]}."
        )
    return same[0]


def _stage(record: RunRecord) -> Path | None:
    """Return the first stage: inside the run, or where a sweep has put it for several runs."""
    if record.pretrain is not None:
        return record.pretrain.path
    shared = Path(str(record.config.get("model", {}).get("encoder", "")))
    method = record.config.get("pretrain", {}).get("method", "none")
    return shared if method != "none" and shared.name and shared.is_dir() else None
