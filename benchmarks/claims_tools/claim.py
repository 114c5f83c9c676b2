"""What a claim is: claim.toml read into typed records, and where its files are."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from claims_tools.grids import Arm, Defaults, arms_of
from claims_tools.smoke_spec import Smoke, read_smoke
from claims_tools.toml_tables import checked_settings, seeds_of, take
from relatum.errors import ConfigError, suggest

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "benchmarks" / "claims"
FILE, RESULTS, SMOKE_RESULTS = "claim.toml", "results.jsonl", "smoke.jsonl"
_REQUIRED = {"title": str, "setting": str, "verdict": str, "recipe": str, "seeds": str}
_OPTIONAL = {
    **{"data": dict, "published": dict, "settings": dict, "smoke": dict},
    **{"arm": list, "grid": list, "table": list, "figure": list, "overview": list},
}


@dataclass(frozen=True)
class Claim:
    """One folder of benchmarks/claims.

    Args:
        folder: where claim.toml lies.
        title: what is claimed, in a sentence.
        setting: data, model and schedule of our trial, in a few words.
        verdict: what came of it, in a few words.
        data: `root`, the folder below that of all data sets (none for generated data), and `words` about it.
        published: `source`, and `values`, the published accuracy of an arm by its name.
        settings: settings of all arms, by dotted key.
        arms: what is compared.
        tables: specs of the tables, by name.
        figures: specs of the figures.
        overview: names of the arms that the table of the project's README shows; may have wildcards.
        smoke: the smallest variant; None without one.
        results: file with one row per finished run.
    """

    folder: Path
    title: str
    setting: str
    verdict: str
    data: Mapping[str, str]
    published: Mapping[str, Any]
    settings: Mapping[str, Any]
    arms: tuple[Arm, ...]
    results: Path
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figures: tuple[Mapping[str, Any], ...] = ()
    overview: tuple[str, ...] = ()
    smoke: Smoke | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    def arm(self, name: str) -> Arm:
        """Return the arm of this name."""
        known = {arm.name: arm for arm in self.arms}
        if name not in known:
            raise ConfigError(f"{self.name}: there is no arm '{name}'; {suggest(name, known)}".rstrip("; "))
        return known[name]

    def select(self, patterns: Sequence[str]) -> list[Arm]:
        """Return the arms that the names or wildcards choose, in the order of these; no patterns choose all."""
        found: dict[str, Arm] = {}
        for pattern in patterns or ("*",):
            met = [arm for arm in self.arms if fnmatchcase(arm.name, pattern)]
            found |= {arm.name: arm for arm in met} or {pattern: self.arm(pattern)}
        return list(found.values())


def read_claim(folder: Path) -> Claim:
    """Read the claim.toml of a folder."""
    path = folder / FILE
    where = f"{folder.name}/{FILE}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; claims are the folders of {CLAIMS}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    take(table, where, _REQUIRED, _OPTIONAL)
    data, published = table.get("data", {"words": "none"}), table.get("published", {"source": "none"})
    take(data, f"{where} [data]", {"words": str}, {"root": str})
    take(published, f"{where} [published]", {"source": str}, {"values": dict})
    defaults = Defaults(where, folder, table["recipe"], seeds_of(table["seeds"], where))
    claim = Claim(
        folder=folder,
        **{key: table[key] for key in ("title", "setting", "verdict")},
        data=data,
        published=published,
        settings=checked_settings(table.get("settings", {}), where),
        arms=arms_of(table, defaults),
        results=folder / RESULTS,
        tables=_tables(table.get("table", []), where),
        figures=tuple(table.get("figure", [])),
        overview=tuple(table.get("overview", [])),
        smoke=read_smoke(table.get("smoke"), where),
    )
    _check_names(claim)
    return claim


def all_claims(folder: Path = CLAIMS) -> list[Claim]:
    """Return every claim, by name."""
    return [read_claim(path.parent) for path in sorted(folder.glob(f"*/{FILE}"))]


def find_claim(name: str) -> Claim:
    """Return the claim of this name, or the one in the folder at that path."""
    if (Path(name) / FILE).is_file():
        return read_claim(Path(name).resolve())
    known = [path.parent.name for path in CLAIMS.glob(f"*/{FILE}")]
    if name not in known:
        raise ConfigError(f"there is no claim '{name}'; {suggest(name, known)}".rstrip("; "))
    return read_claim(CLAIMS / name)


def _tables(found: Sequence[Mapping[str, Any]], where: str) -> dict[str, Mapping[str, Any]]:
    required = {"name": str}
    optional = {"arms": list, "columns": list, "head": str, "base": (str, dict), "difference": list, "digits": int}
    for table in found:
        take(table, f"{where} [[table]]", required, optional)
    return {table["name"]: table for table in found}


def _check_names(claim: Claim) -> None:
    """Names of arms that other parts of the file use must exist."""
    for name in claim.published.get("values", {}):
        claim.arm(name)
    for patterns in [claim.overview, *(table.get("arms", ()) for table in claim.tables.values())]:
        claim.select(patterns)
    for name in claim.smoke.arms if claim.smoke else ():
        claim.arm(name)
