"""Recipe files: strict TOML to frozen dataclasses and back. No key or value is accepted that is not understood."""

from __future__ import annotations

import json
import math
import stat
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from relatum.config import RunConfig
from relatum.errors import ConfigError, suggest

MAX_EXTENDS = 5
LARGEST_RECIPE = 2**16  # the longest of ours has 3 KB
_MOST_DOTS = 400  # in a line: the parser needs time with the square of the parts of a key
LARGEST_INT = 2**63 - 1
_LONGEST_SHOWN = 200
_HINTS: dict[Any, dict[str, Any]] = {}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with its `extends = "other.toml"` (relative to it) underneath."""
    merged: dict[str, Any] = {}
    for table in reversed(_chain(path)):
        merged = _merge(merged, table)
    return merged


def _chain(path: Path) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    while len(tables) < MAX_EXTENDS:
        text = read_recipe(path)
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ConfigError(f"{path} is not a recipe: a line has more than {_MOST_DOTS} dots.")
        try:
            table = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}.") from error
        except RecursionError as error:
            raise ConfigError(f"{path} is not a recipe: its values are nested too deeply.") from error
        parent = table.pop("extends", None)
        tables.append(table)
        if parent is None:
            return tables
        if not isinstance(parent, str):
            raise ConfigError(f"{path}: extends must be the name of a file, not {shown(parent)}.")
        path = path.parent / parent
    raise ConfigError(f"{path}: more than {MAX_EXTENDS} files extend each other; is there a circle?")


def read_recipe(path: Path) -> str:
    """Return the text of a recipe file; a file may name any other with `extends`, so devices and pipes are refused."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"cannot read recipe file {path}: it is not a regular file.")
        if found.st_size > LARGEST_RECIPE:
            raise ConfigError(f"{path} is not a recipe: {found.st_size:,} bytes are more than {LARGEST_RECIPE:,}.")
        # The system's own files claim to be empty, and reading them may wait for ever.
        return path.read_text(encoding="utf-8") if found.st_size else ""
    except OSError as error:
        raise ConfigError(f"cannot read recipe file {path}: {error.strerror}.") from error
    except ValueError as error:  # not UTF-8, or not a path
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def shown(value: Any) -> str:
    """Return a value of a recipe file as an error may show it: short, however long or deep it is."""
    if isinstance(value, list) and len(value) <= 8 and not any(isinstance(v, dict | list) for v in value):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict | list | tuple):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if type(value) is int and abs(value) > LARGEST_INT:
        return "a number of hundreds of digits" if abs(value) > 10**99 else str(value)
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _merge(base: Mapping[str, Any], over: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if depth and isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value, depth - 1)
        merged[key] = value
    return merged


def from_dict(table: Mapping[str, Any], origin: str, kind: type[Any] = RunConfig, prefix: str = "") -> Any:
    """Build the dataclass `kind` from a table; an error names `origin`, the key and the nearest valid key."""
    hints = _hints(kind)
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{origin}: unknown key '{prefix}{key}'; {suggest(key, known)}")
        hint = hints[key]
        if is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{origin}: '{prefix}{key}' must be a table, not {shown(value)}.")
            values[key] = from_dict(value, origin, typing.cast("type[Any]", hint), f"{prefix}{key}.")
        else:
            values[key] = _coerce(value, hint, f"{origin}: '{prefix}{key}'")
    config = kind(**values)
    check(config, origin, prefix)
    return config


def _hints(kind: type[Any]) -> dict[str, Any]:
    """Types by key, remembered: to evaluate a hundred annotations takes longer than all the rest."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def check(config: Any, origin: str, prefix: str = "") -> None:
    """Check types and ranges of every field of a config dataclass, recursively."""
    hints = _hints(type(config))
    for f in fields(config):
        value, where = getattr(config, f.name), f"{origin}: '{prefix}{f.name}'"
        if is_dataclass(value):
            check(value, origin, f"{prefix}{f.name}.")
            continue
        _coerce(value, hints[f.name], where)
        low, high = f.metadata.get("low"), f.metadata.get("high")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise ConfigError(f"{where} is {value}; it must be {bounds}.")
        above, below = f.metadata.get("above"), f.metadata.get("below")
        if above is not None and not above < value < below:
            raise ConfigError(f"{where} is {value}; it must lie between {above:g} and {below:g}, both excluded.")


def _coerce(value: Any, hint: Any, where: str) -> Any:
    """Return `value` as type `hint`; only the harmless conversions int -> float and list -> tuple are made."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            word = value[:99] if isinstance(value, str) else ""
            raise ConfigError(f"{where} is {shown(value)}; {suggest(word, map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, not {shown(value)}.")
        return tuple(_coerce(v, get_args(hint)[0], where) for v in value)
    if origin in (typing.Union, types.UnionType):
        raise ConfigError(f"{where} has a type that recipe files do not support.")
    harmless = hint is float and isinstance(value, int)
    if not (isinstance(value, hint) or harmless) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where} must be of type {hint.__name__}, not {shown(value)}.")
    if hint is int and abs(value) > LARGEST_INT:
        raise ConfigError(f"{where} is {shown(value)}, which is more than a computer counts with.")
    if hint is str:
        _require_text(value, where)
    return _finite(value, where) if hint is float else value


def _require_text(value: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a file name in another encoding; a recipe file could not hold it
        raise ConfigError(f"{where} is {shown(value)}, which is not valid UTF-8; rename the file or folder.") from error
    if "\0" in value:
        raise ConfigError(f"{where} has a NUL character in it, which no file or name can have.")


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # an int of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be a finite number, not {number}.")
    return number


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as nested plain values."""
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        result[f.name] = to_dict(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
    return result


def to_toml(config: Any) -> str:
    """Return a config as TOML: top-level keys, then one table per room."""
    table = to_dict(config)
    top = [f"{key} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for name, part in table.items():
        if isinstance(part, dict):
            top += ["", f"[{name}]", *(f"{key} = {_toml_value(value)}" for key, value in part.items())]
    return "\n".join(top) + "\n"


def _toml_value(value: Any) -> str:
    """JSON is TOML here but for two things: TOML knows no surrogate pairs, and allows no bare DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as {"data.root": ...}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the flattened keys whose values differ, with both values."""
    a, b = flatten(old), flatten(new)
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}
