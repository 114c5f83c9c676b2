"""From the words of the command line to the points of a grid: which settings vary, over which values and seeds."""

from __future__ import annotations

import hashlib
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from relatum.config import RunConfig
from relatum.config_files import flatten, from_dict, to_dict
from relatum.errors import ConfigError, suggest

# Settings that a sweep gives to its runs itself, and what to say of them.
OWN = {
    "train.seed": "the seeds of a sweep are given with --seeds, for example --seeds 0-2",
    "out": "every run gets its own directory inside --out",
    "allow_changes": "a run of a sweep is what its name says; give another --out",
    "stages": "a grid cannot vary it; two sweeps with two --out can",
}
MOST_SEEDS = 1000
_NUMBERS = {int: "a whole number", float: "a number"}
_LONGEST_VALUE = 40


@dataclass(frozen=True)
class Point:
    """One place of the grid.

    Args:
        values: swept settings by key, such as {"objective.tau": 0.5}; empty where only seeds vary.
    """

    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the point in directories and logs; the same in every sweep, whatever else is swept there."""
        return "_".join(f"{short_key(key)}-{_plain(value)}" for key, value in self.values.items()) or "recipe"

    def words(self, keys: Sequence[str] | None = None) -> list[str]:
        """Return the command-line words that set the values, or those of `keys` only."""
        chosen = self.values if keys is None else {key: self.values[key] for key in keys}
        return [word for key, value in chosen.items() for word in _option(key, value)]

    def config(self, base: RunConfig, **more: Any) -> RunConfig:
        """Return `base` with the values of this point, and `more` on top (`train__seed=1` is train.seed)."""
        return with_settings(base, {**self.values, **{key.replace("__", "."): value for key, value in more.items()}})


def parse_points(texts: Sequence[str], base: RunConfig, overridden: Sequence[str] = ()) -> list[Point]:
    """Return the points of a grid, the last key varying fastest; every value is checked.

    Args:
        texts: what stood behind each --over: "objective.tau=0,0.5,1".
        base: settings of the recipe with the overrides of the command line.
        overridden: keys that the command line sets for all points.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, values = _axis(text)
        if key in axes:
            raise ConfigError(f"--over {key} is there twice; give all its values at once: --over {key}=V1,V2.")
        if key in overridden:
            raise ConfigError(f"{key} is both swept (--over) and set (--{_spelt(key)}); keep one of them.")
        axes[key] = [_parse(value, key, base) for value in values]
    points = [Point(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    _require_distinct(points, base)
    return points


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of "0-2" or "0,3,5" or "0-2,7".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", part.strip(), re.ASCII)
        if match is None:
            raise ConfigError(f"--seeds is '{text}'; write a range such as 0-2, or a list such as 0,3,5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_SEEDS:
            raise ConfigError(f"--seeds {part.strip()} must rise, and hold at most {MOST_SEEDS} seeds.")
        seeds += range(first, last + 1)
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise ConfigError(f"--seeds {text} names seed {twice} twice.")
    if max(seeds) >= 2**32:
        raise ConfigError(f"--seeds {text}: a seed must be less than 2^32.")
    return seeds


def with_settings(base: RunConfig, flat: Mapping[str, Any]) -> RunConfig:
    """Return `base` with settings by dotted key; types and ranges are checked."""
    table = to_dict(base)
    for key, value in flat.items():
        *rooms, last = key.split(".")
        place = table
        for room in rooms:
            place = place[room]
        place[last] = value
    config: RunConfig = from_dict(table, "sweep")
    return config


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return all settings by dotted key."""
    return flatten(to_dict(config))


def key_type(key: str) -> Any:
    """Return the declared type of a setting."""
    kind: Any = RunConfig
    for part in key.split("."):
        kind = typing.get_type_hints(kind)[part]
    return kind


def is_numeric(key: str) -> bool:
    """Whether a setting is a number, so that values can be put on an axis."""
    return key_type(key) in _NUMBERS


def short_key(key: str) -> str:
    """Return a key as names of points use it: without its room where that is clear, "objective" for objective.name."""
    room, _, last = key.rpartition(".")
    if last == "name":
        return room
    same = [known for known in settings_of(RunConfig()) if known.rpartition(".")[2] == last]
    return _spelt(last if len(same) == 1 else key)


def _axis(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    key = key.strip().removeprefix("--").replace("-", "_")
    if not equals:
        raise ConfigError(f"--over {text} has no values; write --over KEY=V1,V2, for example --over objective.tau=0,1.")
    if key in OWN:
        raise ConfigError(f"{key} cannot be swept: {OWN[key]}.")
    known = settings_of(RunConfig())
    if key not in known:
        raise ConfigError(f"--over {text}: unknown key '{key}'; {_nearest(key, known)}".rstrip("; ") + ".")
    parts = [part.strip() for part in values.split(",")]
    if parts == [""]:
        raise ConfigError(f"--over {key}= has no values; write --over {key}=V1,V2.")
    if "" in parts:
        raise ConfigError(f"--over {text} has an empty value; write the values with one comma between them.")
    return key, parts


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    last = key.rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == last]
    return f"did you mean {' or '.join(same)}?" if same else suggest(key, known)


def _parse(text: str, key: str, base: RunConfig) -> Any:
    """Return one value with its type; ranges and choices are checked by putting it into `base`."""
    hint = key_type(key)
    # Several words make one value of a list, as on the command line: --over "relation.at=blocks.3 blocks.7,blocks.7"
    many = get_origin(hint) is tuple
    value = [_typed(part, get_args(hint)[0], key) for part in text.split()] if many else _typed(text, hint, key)
    with_settings(base, {key: value})
    return value


def _typed(text: str, hint: Any, key: str) -> Any:
    if hint is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"--over {key}: '{text}' must be true or false.")
        return text == "true"
    if hint not in _NUMBERS:
        return text
    try:
        return hint(text)
    except ValueError as error:
        raise ConfigError(f"--over {key}: '{text}' must be {_NUMBERS[hint]}.") from error


def _require_distinct(points: Sequence[Point], base: RunConfig) -> None:
    met: dict[str, Point] = {}
    for point in points:
        settings = repr(settings_of(point.config(base)))
        if settings in met:
            raise ConfigError(f"the grid holds the point {point.name} twice; remove the value that is repeated.")
        met[settings] = point


def _option(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        room, _, last = _spelt(key).rpartition(".")
        return [f"--{room}.{'' if value else 'no-'}{last}"]
    if isinstance(value, list | tuple):
        return [f"--{_spelt(key)}", *map(str, value)]
    return [f"--{_spelt(key)}={value}"]


def _spelt(key: str) -> str:
    return key.replace("_", "-")


def _plain(value: Any) -> str:
    """Write a value so that it can be part of a file name; what had to be changed or cut is told apart by a hash."""
    text = "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = re.sub(r"\.0$", "", text) if isinstance(value, float) else text
    safe = re.sub(r"[^A-Za-z0-9.+-]", "-", text)
    if safe == text and len(text) <= _LONGEST_VALUE:
        return text
    return f"{safe[-_LONGEST_VALUE:].lstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
