"""The arms of a claim: each [[arm]] as it stands, each [[grid]] multiplied out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claims_tools.toml_tables import checked_settings, seeds_of, take
from relatum.errors import ConfigError

_SHARED = {"recipe": str, "settings": dict, "seeds": str, "label": str, "root": str}
_FORBIDDEN = set("/\\ |,:*?[]")


@dataclass(frozen=True)
class Arm:
    """One thing that is compared.

    Args:
        name: in results.jsonl, directories and commands.
        label: in tables and figures.
        recipe: a shipped recipe, or the path of a file.
        settings: its own settings, on top of those of all arms.
        seeds: the seeds it is trained with.
        root: folder of its data below that of all data sets, where it is not the claim's.
        parts: where it lies in its grid: name of the part on each axis; empty for an [[arm]].
        words: how tables and figures call those parts.
        grid: number of its grid in the file, from 1 on; 0 for an [[arm]]. Two grids may have the same axes.
    """

    name: str
    label: str
    recipe: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    root: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    grid: int = 0


@dataclass(frozen=True)
class Defaults:
    """What an arm takes over from its claim where it says nothing itself.

    Args:
        where: how errors name the file.
        folder: where recipe files lie.
        recipe: a shipped recipe, or a file of that folder.
        seeds: the seeds.
    """

    where: str
    folder: Path
    recipe: str
    seeds: tuple[int, ...]

    def arm(self, entry: Mapping[str, Any], name: str, label: str) -> Arm:
        """Return the arm of an entry of [[arm]] or [[grid]]."""
        where = f"{self.where}, arm '{name}'"
        if not name or _FORBIDDEN & set(name) or name.startswith((".", "-")):
            raise ConfigError(f"{where}: this cannot be its name; take letters, digits and . + - _")
        recipe = entry.get("recipe", self.recipe)
        found = str(self.folder / recipe) if recipe.endswith(".toml") else recipe
        seeds = seeds_of(entry["seeds"], where) if "seeds" in entry else self.seeds
        settings = checked_settings(entry.get("settings", {}), where)
        return Arm(name, label, found, settings, seeds, entry.get("root", ""))


@dataclass(frozen=True)
class _Part:
    """One value of an axis: its name, and the settings it stands for."""

    name: str
    settings: Mapping[str, Any]


def arms_of(table: Mapping[str, Any], defaults: Defaults) -> tuple[Arm, ...]:
    """Return all arms of a claim.toml."""
    arms: list[Arm] = []
    for entry in table.get("arm", []):
        take(entry, f"{defaults.where} [[arm]]", {"name": str}, _SHARED)
        arms.append(defaults.arm(entry, entry["name"], entry.get("label", entry["name"])))
    for number, entry in enumerate(table.get("grid", []), 1):
        arms += [replace(arm, grid=number) for arm in _multiplied(entry, defaults)]
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{defaults.where}: two arms are called '{twice}'; every arm needs a name of its own.")
    if not arms:
        raise ConfigError(f"{defaults.where}: there is no arm; write [[arm]] or [[grid]].")
    return tuple(arms)


def _multiplied(entry: Mapping[str, Any], defaults: Defaults) -> list[Arm]:
    place = f"{defaults.where} [[grid]]"
    take(entry, place, {"over": dict}, {**_SHARED, "name": str, "labels": dict})
    axes = {name: _parts(name, values, place) for name, values in entry["over"].items()}
    arms = []
    for chosen in itertools.product(*axes.values()):
        parts = {axis: part.name for axis, part in zip(axes, chosen, strict=True)}
        words = {axis: str(entry.get("labels", {}).get(name, name)) for axis, name in parts.items()}
        name = _filled(entry["name"], parts) if "name" in entry else "-".join(parts.values())
        label = _filled(entry["label"], words) if "label" in entry else ", ".join(words.values())
        own = {key: value for part in chosen for key, value in part.settings.items()}
        arm = defaults.arm({**entry, "settings": {**entry.get("settings", {}), **own}}, name, label)
        arms.append(replace(arm, parts=parts, words=words))
    return arms


def _parts(axis: str, values: Any, place: str) -> list[_Part]:
    """An axis is a setting with a list of values, or a name with a table of settings for each of its parts."""
    if isinstance(values, list) and values:
        checked_settings({axis: None}, place)
        return [_Part(_short(value), {axis: value}) for value in values]
    if isinstance(values, dict) and values and all(isinstance(part, dict) for part in values.values()):
        return [_Part(name, part) for name, part in values.items()]
    raise ConfigError(
        f'{place}: over.{axis} must be a list of values ("train.epochs" = [15, 30]), or a table of settings by name '
        '(loss = { ce = { "objective.name" = "cross-entropy" } }).'
    )


def _short(value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    for axis, text in parts.items():
        pattern = pattern.replace("{" + axis + "}", text)
    return pattern
