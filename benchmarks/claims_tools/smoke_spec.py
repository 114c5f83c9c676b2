"""The [smoke] part of a claim.toml: which two arms to train in small, and what their difference must do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from claims_tools.toml_tables import checked_settings, seeds_of, take
from relatum.errors import ConfigError

_REQUIRED = {"effect": list, "column": str}
_OPTIONAL = {"settings": dict, "seeds": str, "above": float, "within": float}


@dataclass(frozen=True)
class Smoke:
    """The smallest variant of a claim.

    Args:
        effect: two arms; the effect is the first minus the second.
        column: of the results, such as "All".
        settings: on top of those of the arms.
        seeds: the seeds of one check.
        above: the effect must stay above this many points: below, it has disappeared. None if `within` is given.
        within: the effect must stay within this many points of zero: beyond, there is one after all.
    """

    effect: tuple[str, str]
    column: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    above: float | None
    within: float | None

    @property
    def arms(self) -> tuple[str, str]:
        """The arms to train."""
        return self.effect


def read_smoke(table: Mapping[str, Any] | None, where: str) -> Smoke | None:
    """Read [smoke]; None without one."""
    if table is None:
        return None
    where = f"{where} [smoke]"
    take(table, where, _REQUIRED, _OPTIONAL)
    if len(table["effect"]) != 2 or not all(isinstance(name, str) for name in table["effect"]):
        raise ConfigError(f'{where}: effect must be two arms, the first minus the second: ["mae", "scratch"].')
    if ("above" in table) == ("within" in table):
        raise ConfigError(f"{where}: give above (there is an effect) or within (there is none), in points.")
    return Smoke(
        (table["effect"][0], table["effect"][1]),
        table["column"],
        checked_settings(table.get("settings", {}), where),
        seeds_of(table.get("seeds", "0"), where),
        table.get("above"),
        table.get("within"),
    )
