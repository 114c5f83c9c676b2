"""Tables of a claim.toml, taken apart strictly: a key or a type that is not understood is an error with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relatum.config import RunConfig
from relatum.errors import ConfigError, suggest
from relatum.sweep.grid import OWN, parse_seeds, settings_of

_WORDS: dict[Any, str] = {str: "text", dict: "a table", list: "a list", int: "a whole number", float: "a number"}


def take(table: Mapping[str, Any], where: str, required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Check the keys of a table and the types of their values.

    Args:
        table: as TOML has it.
        where: how an error names the table.
        required: type of every key that must be there; several types as a tuple.
        optional: type of every key that may be there.
    """
    known = {**required, **optional}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'; {suggest(key, known)}")
        kinds = known[key] if isinstance(known[key], tuple) else (known[key],)
        if not isinstance(value, (*kinds, *((int,) if float in kinds else ()))) or isinstance(value, bool):
            raise ConfigError(f"{where}: '{key}' must be {' or '.join(_WORDS[kind] for kind in kinds)}, not {value!r}.")
    missing = [key for key in required if key not in table]
    if missing:
        raise ConfigError(f"{where}: '{missing[0]}' is missing.")


def checked_settings(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return settings by dotted key; what they may be is checked when a run is planned, their names are here."""
    known = settings_of(RunConfig())
    for key in table:
        if key in OWN:
            raise ConfigError(f"{where}: '{key}' cannot be set; seeds are given as seeds = \"0-2\".")
        if key not in known:
            raise ConfigError(f'{where}: unknown setting "{key}"; {suggest(key, known)}'.rstrip("; ") + ".")
    return dict(table)


def seeds_of(text: str, where: str) -> tuple[int, ...]:
    """Return the seeds of "0-2" or "0,3,5"."""
    try:
        return tuple(parse_seeds(text))
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix('--')}") from error
