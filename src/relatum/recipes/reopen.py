"""A run again: its settings, its plain model, and the data it was trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from relatum.config import RunConfig
from relatum.config_files import from_dict, read_toml
from relatum.data.loaders import Loaders, build_loaders
from relatum.errors import DataError
from relatum.trained import Trained, load


class Reopened(NamedTuple):
    """What `reopen` found."""

    trained: Trained
    config: RunConfig
    loaders: Loaders


def run_config(path: Path) -> RunConfig:
    """Return the settings of a run directory."""
    config: RunConfig = from_dict(read_toml(path / "config.toml"), str(path / "config.toml"))
    return config


def reopen(path: Path, data_root: str = "", trained: Trained | None = None) -> Reopened:
    """Open a run directory of a classifier with its data.

    Args:
        path: the run directory.
        data_root: replaces `data.root` of the run; empty keeps it.
        trained: its model, if it has been loaded already.

    Raises:
        DataError: the data has other classes than the run.
    """
    trained = trained or load(path)
    config = run_config(path)
    data = replace(config.data, root=data_root) if data_root else config.data
    loaders = build_loaders(data, seed=config.train.seed, epochs=config.train.epochs)
    if loaders.prior.names != trained.class_names:
        raise DataError(f"the data at '{data.root}' has other classes than {path} was trained on.")
    return Reopened(trained, config, loaders)
