"""Runs that share everything but the seed: gathered, and averaged into one record for the figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from relatum.prior import GROUPS
from relatum.report.format import finite
from relatum.report.records import RunRecord

_SCORES = ("top1", "top5", "balanced_accuracy", "macro_f1", "nll", "ece", "mce")
_FACTS = ("parameters", "seconds", "images_per_second")
_LOGGED = (
    *("loss", "loss/plain", "loss/related", "agreement"),
    *("top1", *GROUPS),
    *("mse", "psnr"),
)


@dataclass(frozen=True)
class SeedGroup:
    """Runs that share every setting but the seed."""

    name: str
    records: tuple[RunRecord, ...]

    @property
    def seeds(self) -> list[int | None]:
        """The seeds, in the order of the runs."""
        return [record.seed for record in self.records]

    def mean(self, value: Callable[[RunRecord], float | None]) -> float | None:
        """Mean over the seeds, or None if any of them has no value."""
        return _mean([value(record) for record in self.records])


def seed_groups(records: Sequence[RunRecord]) -> list[SeedGroup]:
    """Gather finished runs that share everything but the seed; a run alone is a group of one."""
    gathered: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.has_scores:
            gathered.setdefault(_without_seed(record), []).append(record)
    return [SeedGroup(_shared_name(group), tuple(group)) for group in gathered.values()]


def repeated(records: Sequence[RunRecord]) -> list[SeedGroup]:
    """Return the groups of two runs and more."""
    return [group for group in seed_groups(records) if len(group.records) > 1]


def averaged(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Replace runs that differ in the seed alone by their mean; all others stay, in the order of appearance."""
    place = {id(group.records[0]): group for group in repeated(records)}
    inside = {id(record) for group in place.values() for record in group.records}
    kept = [record for record in records if id(record) in place or id(record) not in inside]
    return [mean_record(place[id(record)]) if id(record) in place else record for record in kept]


def mean_record(group: SeedGroup) -> RunRecord:
    """Average scores, per-class accuracy and curves over the seeds; pool reliability and confusion counts."""
    first = group.records[0]
    all_scores = [record.primary for record in group.records]
    scores = {
        **first.primary,
        **{key: _mean([finite(s.get(key)) for s in all_scores]) for key in _SCORES},
        "groups": _mean_groups(all_scores),
        "per_class": _mean_classes(all_scores),
        "worst_class": None,
        "interval": None,
        "reliability": _pooled_bins([s["reliability"] for s in all_scores if s.get("reliability")]),
        "confusion": _pooled_confusion([s["confusion"] for s in all_scores if s.get("confusion")]),
        "sigmoid": _pooled_calibration([s.get("sigmoid") for s in all_scores]),
        "group_reliability": {
            name: _pooled_calibration([(s.get("group_reliability") or {}).get(name) for s in all_scores])
            for name in GROUPS
        },
    }
    facts = {key: _mean([finite(record.manifest.get(key)) for record in group.records]) for key in _FACTS}
    train = {key: value for key, value in first.config.get("train", {}).items() if key != "seed"}
    return replace(
        first,
        name=group.name,
        manifest={**first.manifest, **facts},
        config={**first.config, "train": train},
        metrics=_mean_rows(group.records),
        scores={str(first.split): scores},
        pretrain=_mean_stage([record.pretrain for record in group.records]),
    )


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into dotted keys.

    >>> flatten({"train": {"lr": 0.1}})
    {'train.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _mean_groups(all_scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first: dict[str, Any] = all_scores[0].get("groups", {})
    return {
        name: {**found, "accuracy": _mean([finite(s["groups"][name]["accuracy"]) for s in all_scores])}
        for name, found in first.items()
    }


def _mean_classes(all_scores: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    tables = zip(*(s.get("per_class") or [] for s in all_scores), strict=True)
    return [{**rows[0], "accuracy": _mean([finite(row["accuracy"]) for row in rows])} for rows in tables]


def _pooled_bins(tables: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not tables:
        return None
    counts = np.array([table["count"] for table in tables], dtype=float)
    total = counts.sum(axis=0)
    pooled: dict[str, Any] = {"edges": tables[0]["edges"], "count": total.tolist()}
    for key in ("accuracy", "confidence"):
        values = np.array([[finite(x) or 0.0 for x in table[key]] for table in tables])
        sums = (values * counts).sum(axis=0)
        pooled[key] = [float(s / n) if n else None for s, n in zip(sums, total, strict=True)]
    return pooled


def _pooled_calibration(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Average ECE and MCE and pool the bins, if every seed has them."""
    known = [entry for entry in found if entry]
    if len(known) < len(found):
        return None
    errors = {key: _mean([finite(entry.get(key)) for entry in known]) for key in ("ece", "mce")}
    total = sum(int(entry.get("count") or 0) for entry in known)
    return {**known[0], **errors, "count": total, "reliability": _pooled_bins([e["reliability"] for e in known])}


def _mean_stage(stages: Sequence[RunRecord | None]) -> RunRecord | None:
    """Average what was measured of the first stages; the picture is that of the first one."""
    known = [stage for stage in stages if stage is not None]
    if not known or len(known) < len(stages):
        return None
    keys = ("loss", "mse", "psnr")
    means = {key: _mean([finite(stage.reconstruction.get(key)) for stage in known]) for key in keys}
    split = str(known[0].split)
    scores = {split: {**known[0].reconstruction, **means}} if known[0].scores else {}
    return replace(known[0], metrics=_mean_rows(known), scores=scores, probe=_mean_probes([s.probe for s in known]))


def _mean_probes(probes: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    means: dict[str, dict[str, Any]] = {}
    for method, splits in probes[0].items():
        for split, scores in splits.items():
            found = [entry for probe in probes if (entry := probe.get(method, {}).get(split))]
            if len(found) == len(probes):
                top1 = _mean([finite(entry.get("top1")) for entry in found])
                means.setdefault(method, {})[split] = {**scores, "top1": top1, "groups": _mean_groups(found)}
    return means


def _pooled_confusion(tables: Sequence[list[list[int]]]) -> list[list[int]] | None:
    return np.sum([np.array(table) for table in tables], axis=0).tolist() if tables else None


def _mean_rows(records: Sequence[RunRecord]) -> tuple[dict[str, Any], ...]:
    """Average the rows of the same kind, split and epoch, as long as every seed has one."""
    met: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        for row in record.metrics:
            met.setdefault((row.get("kind"), row.get("split"), row.get("epoch")), []).append(row)
    full = [rows for rows in met.values() if len(rows) == len(records)]
    return tuple({**rows[0], **_mean_numbers(rows)} for rows in full)


def _mean_numbers(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    return {key: _mean([finite(row.get(key)) for row in rows]) for key in _LOGGED if key in rows[0]}


def _without_seed(record: RunRecord) -> str:
    if not record.config:
        return str(record.path)  # nothing is known of its settings, so it is like no other run
    flat = flatten(record.config)
    kept = {key: flat[key] for key in sorted(flat) if key not in ("out", "train.seed")}
    # An encoder that was pretrained with the same seed lies in a folder of that seed.
    kept["model.encoder"] = re.sub(rf"-s{record.seed}$", "", str(kept.get("model.encoder", "")))
    names = [row["name"] for row in record.per_class]
    # A run whose classifier was fitted anew has the settings of the run it came from.
    refitted = record.manifest.get("classifier", {}).get("method")
    return repr((kept, refitted, record.split, record.rule, record.primary.get("samples"), record.counts, names))


def _shared_name(records: Sequence[RunRecord]) -> str:
    if len(records) == 1:
        return records[0].name
    return re.sub(rf"[-_. ]*(?:seed|s)?[-_=]?{records[0].seed}$", "", records[0].name) or records[0].name
