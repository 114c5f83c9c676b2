"""From an arm to the settings of its runs, and the part of them that a result stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claims_tools.claim import Claim
from claims_tools.grids import Arm
from relatum.config import RunConfig
from relatum.config_files import from_dict
from relatum.errors import ConfigError
from relatum.recipes.catalog import find_recipe
from relatum.report.files import read_object
from relatum.sweep.grid import settings_of, with_settings
from relatum.sweep.state import FREE

# Where and how a run was computed, and how often it was looked at: they do not change what it comes to.
_IRRELEVANT = {
    *(*FREE, "data.root", "data.eval_batch_size", "data.memory", "stages", "allow_changes"),
    *("train.seed", "train.eval_every", "train.save_every", "pretrain.eval_every"),
}


def arm_config(claim: Claim, arm: Arm) -> RunConfig:
    """Return the settings of an arm, but for seed, directories and threads."""
    try:
        return with_settings(find_recipe(arm.recipe).config(), {**claim.settings, **arm.settings})
    except ConfigError as error:
        raise ConfigError(f"{claim.name}, arm '{arm.name}': {str(error).removeprefix('sweep: ')}") from error


def essential(config: RunConfig) -> dict[str, Any]:
    """Return what a result stands for: the settings that matter and are not the library's defaults.

    Settings that a later version adds do not part old rows from new ones, as long as their default is what was done
    before.
    """
    defaults = settings_of(RunConfig())
    # The encoder of a first stage lies wherever that was trained.
    passing = _IRRELEVANT | ({"model.encoder"} if config.pretrain.method != "none" else set())
    kept = {key: value for key, value in settings_of(config).items() if key not in passing and value != defaults[key]}
    return dict(json.loads(json.dumps(kept)))


def run_config(path: Path) -> RunConfig:
    """Return the settings that a run was trained with, as its directory has them."""
    return from_dict(read_object(path / "config.json"), str(path))


def row_settings(claim: Claim, arm: Arm, config: RunConfig) -> dict[str, Any]:
    """Return the settings that a row keeps: the essential ones, and all that claim.toml names for the arm."""
    named = {**claim.settings, **arm.settings}.keys() - _IRRELEVANT
    said = {key: value for key, value in settings_of(config).items() if key in named}
    return {**essential(config), **dict(json.loads(json.dumps(said)))}


def changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say which settings differ, in words; empty if none does."""
    defaults = settings_of(RunConfig())

    def value(settings: Mapping[str, Any], key: str) -> Any:
        return settings.get(key, defaults.get(key))

    keys = sorted(key for key in was.keys() | now.keys() if value(was, key) != value(now, key))
    return "; ".join(f"{key} was {value(was, key)!r}, now {value(now, key)!r}" for key in keys)


def data_settings(claim: Claim, folder: str, root: str = "") -> dict[str, Any]:
    """Return where the data of a claim lies.

    Args:
        claim: its [data] names the folder, unless its data is generated.
        folder: the folder of all data sets.
        root: of an arm that has data of its own; empty for that of the claim.
    """
    if "root" not in claim.data:
        return {}
    if not folder:
        raise ConfigError(f"{claim.name} needs data ({claim.data['words']}): give --data DIR, or set RELATUM_DATA.")
    path = Path(folder) / (root or claim.data["root"])
    if not path.is_dir():
        raise ConfigError(f"{claim.name} needs data ({claim.data['words']}), and there is no folder {path}.")
    return {"data.root": str(path.resolve())}
