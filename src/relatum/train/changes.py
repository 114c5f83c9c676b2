"""What has changed since a run was last worked on: found, put into words, refused or put on record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relatum.config import RunConfig
from relatum.config_files import differences, flatten, to_dict
from relatum.errors import ConfigError

# By key, what it was and what it is.
Changes = dict[str, tuple[Any, Any]]

# Settings that may change between two commands on one run directory: what has been trained stays valid.
FREE = (
    "out",
    "allow_changes",
    "stages",
    "train.device",
    "train.threads",
    "train.tensorboard",
    "train.max_steps",
    "train.on_nonfinite",
    "train.nonfinite_limit",
    "data.workers",
    "data.eval_batch_size",
    # What these let in or keep out shows in the fingerprint of the data.
    "data.bad_images",
    "data.bad_limit",
    "data.allow_outside",
)
_PER_PROCESS = ("data.batch_size", "pretrain.batch_size")
_DEFAULTS = flatten(to_dict(RunConfig()))


def changed_settings(
    before: Mapping[str, Any], config: Mapping[str, Any], processes: tuple[int, int] = (1, 1)
) -> Changes:
    """Return the settings that differ and matter.

    Args:
        before: the settings of the run so far.
        config: those of now.
        processes: how many processes there were, and are.
    """
    now = json.loads(json.dumps(config))  # as it will be read back: tuples are lists there
    found = {key: values for key, values in differences(before, now).items() if key not in FREE}
    fresh = _unknown_then(before)
    found = {key: (old, new) for key, (old, new) in found.items() if key not in fresh or new != fresh[key]}
    return found if processes[0] == processes[1] else _over_processes(found, flatten(before), flatten(now), processes)


def _over_processes(
    found: Changes, before: Mapping[str, Any], now: Mapping[str, Any], processes: tuple[int, int]
) -> Changes:
    """Another number of processes is the same training while a step, and a relation, see as many images as before."""
    apart = _related(now) and not now.get("relation.gather")
    staged = now.get("pretrain.method", "none") != "none"
    keys = [key for key in _PER_PROCESS if key in before and key in now and (staged or not key.startswith("pretrain"))]
    for key in keys:
        steps = (before[key] * processes[0], now[key] * processes[1])
        alone = found.pop(key, None)
        if steps[0] != steps[1]:
            found[f"{key} x processes (images per step)"] = steps
        elif apart and alone is not None:
            found[f"{key} (images that a relation without gather relates)"] = alone
    return found


def _related(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(key, "none") != "none" for key in ("relation.name", "pretrain.relation"))


def _unknown_then(before: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that an earlier version did not have, with the value that stands for what it did."""
    known = flatten(before)
    return {key: value for key, value in _DEFAULTS.items() if key not in known and key.partition(".")[0] in before}


def settings_in_words(changes: Changes) -> str:
    """Name every setting with both of its values."""
    return "; ".join(f"{key} was {old!r}, now {new!r}" for key, (old, new) in changes.items())


def refuse_settings(path: Path, words: str) -> None:
    """Raise the error for a run directory with other settings."""
    raise ConfigError(
        f"{path} holds a run with other settings ({words}). Give another --out, delete that directory to start anew, "
        "or continue it as it is now with --allow-changes."
    )


def refuse_data(path: Path, words: str) -> None:
    """Raise the error for a run directory with other data."""
    raise ConfigError(
        f"{path} holds a run on other data ({words}). Bring the data back, give another --out, or continue with the "
        "data as it is now with --allow-changes."
    )


def on_record(entries: list[dict[str, Any]], step: int, changes: Changes) -> list[dict[str, Any]]:
    """Return the list `changes` of a manifest with one more entry; what a crash made us ask twice stands there once."""
    entry = {"step": step, "changed": {key: list(values) for key, values in changes.items()}}
    return entries if entries and entries[-1] == entry else [*entries, entry]
