"""Read run directories, finished or not, into typed records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relatum.errors import CheckpointError, RelatumError
from relatum.prior import GROUPS, ClassPrior, ShotGroups
from relatum.report.files import read_metrics, read_object, read_settings

_MARKS = ("config.toml", "manifest.json", "metrics.jsonl", "scores.json")
_STAGE = "pretrain"


@dataclass(frozen=True)
class RunRecord:
    """What one run directory says.

    Args:
        path: the run directory.
        name: the directory's name, with its parent's where two runs would share it.
        manifest: manifest.json, empty if missing.
        config: config.toml, empty if missing.
        metrics: rows of metrics.jsonl by step; rows written again after a resume replace the older ones.
        scores: scores.json by split, empty while the run is unfinished.
        skipped_lines: lines of metrics.jsonl that a crash left unreadable.
        pretrain: the masked pretraining that came first, a record of its own, or None. Where nothing else has been
            trained yet, the settings are those of it.
        probe: of masked pretraining, what simple classifiers make of its encoder: scores by method and split.
    """

    path: Path
    name: str
    manifest: dict[str, Any]
    config: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    scores: dict[str, dict[str, Any]]
    skipped_lines: int = 0
    pretrain: RunRecord | None = None
    probe: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def reconstructs(self) -> bool:
        """Whether this is masked pretraining, whose scores are those of a reconstruction and not of a classifier."""
        if self.scores:
            return all(entry.get("kind") == "reconstruction" for entry in self.scores.values())
        rows = self._evaluations()
        return "psnr" in rows[-1] if rows else _STAGE in (self.manifest.get("stage"), self.path.resolve().name)

    @property
    def reconstruction(self) -> dict[str, Any]:
        """Of masked pretraining: loss, MSE and PSNR of the primary split, the last ones if unfinished; at worst {}."""
        rows = self.evaluations(self.split)
        return self.scores[str(self.split)] if self.scores else rows[-1] if rows else {}

    @property
    def only_pretrained(self) -> bool:
        """Whether there is pretraining, but no classifier has been trained after it."""
        return self.pretrain is not None and not self.scores and not self.metrics

    @property
    def has_scores(self) -> bool:
        """Whether the final evaluation is there."""
        return bool(self.scores)

    @property
    def split(self) -> str | None:
        """The primary split: test if there is one, else val, else the first; of the evaluation rows if unfinished."""
        known = list(self.scores) or list(dict.fromkeys(row["split"] for row in self._evaluations()))
        return next((name for name in ("test", "val") if name in known), known[0] if known else None)

    @property
    def primary(self) -> dict[str, Any]:
        """Scores of the primary split. An unfinished run gives its last evaluation, with fewer keys; at worst {}."""
        if self.scores:
            return self.scores[str(self.split)]
        rows = self.evaluations(self.split)
        return self._partial(rows[-1]) if rows else {}

    @property
    def rule(self) -> str:
        """The shot rule in force."""
        found = self.scores[str(self.split)].get("rule") if self.scores else None
        return str(found or self.config.get("evaluate", {}).get("shot_rule", "standard"))

    @property
    def counts(self) -> list[int]:
        """Training images per class, in class order; empty if unknown."""
        known = self.manifest.get("class_counts")
        return [int(n) for n in known] if known else [int(row["train_count"]) for row in self.per_class]

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """Per-class rows of the primary split; empty while unfinished."""
        return list(self.scores[str(self.split)].get("per_class") or []) if self.scores else []

    @property
    def seed(self) -> int | None:
        """The training seed."""
        found = self.manifest.get("seed", self.config.get("train", {}).get("seed"))
        return None if found is None else int(found)

    def shot_groups(self) -> ShotGroups | None:
        """Return the shot group of each class, or None where counts are unknown or the rule does not fit them."""
        try:
            return ClassPrior(self.counts).shot_groups(self.rule) if self.counts else None
        except RelatumError:
            return None

    def evaluations(self, split: str | None) -> list[dict[str, Any]]:
        """Return the evaluation rows of `split`, oldest first."""
        return [row for row in self._evaluations() if row["split"] == split]

    def training(self) -> list[dict[str, Any]]:
        """Return the training rows, oldest first."""
        return [row for row in self.metrics if row.get("kind") == "train" and "epoch" in row]

    def state(self) -> str:
        """Say in words what is missing; "" for a finished run."""
        if self.only_pretrained and self.pretrain is not None:
            missing = self.pretrain.state()
            if self.pretrain.path == self.path:
                return missing
            return f"pretraining {missing}" if missing else "pretrained, no classifier trained yet"
        status = self.manifest.get("status", "finished" if self.scores else "unfinished")
        if self.scores and status == "finished":
            return ""
        done = max((float(row["epoch"]) for row in self.metrics if "epoch" in row), default=0.0)
        stage = self.config.get(_STAGE, {}) if self.reconstructs else {}
        total = stage.get("epochs", self.config.get("train", {}).get("epochs"))
        progress = f"epoch {done:g} of {total}" if total else f"epoch {done:g}"
        shown = "" if self.scores else f", last evaluation on {self.split}" if self.split else ", not evaluated yet"
        return f"{'no final scores' if status == 'finished' else status}: {progress}{shown}"

    def _evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.metrics if row.get("kind") == "eval" and "split" in row and "epoch" in row]

    def _partial(self, row: dict[str, Any]) -> dict[str, Any]:
        found = self.shot_groups()
        sizes: dict[str, int] = found.sizes() if found else {}
        groups = {name: {"accuracy": row.get(name), "classes": sizes.get(name)} for name in GROUPS}
        kept = {key: row.get(key) for key in ("split", "top1", "top5", "nll", "ece")}
        return {**kept, "rule": self.rule, "groups": groups}


def load_records(run_dirs: Sequence[Path | str]) -> list[RunRecord]:
    """Read run directories; a folder that holds run directories stands for all of them, the plainest run first.

    Args:
        run_dirs: run directories or folders of them. The order is kept, because the first run is the baseline.

    Raises:
        CheckpointError: a path is missing, is no run, or holds a file that cannot be read.
    """
    found: dict[Path, RunRecord] = {}
    for path in run_dirs:
        for record in _expand(Path(path)):
            found.setdefault(record.path.resolve(), record)
    if not found:
        raise CheckpointError("no run directory was given; name at least one, for example runs/long-tail-s0.")
    return _distinct_names(list(found.values()))


def _expand(path: Path) -> list[RunRecord]:
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a run directory written by `relatum train`.")
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; give the run directory that holds it: {path.parent}.")
    if _is_run(path):
        return [found for found in [_find(path)] if found]
    children = [found for child in path.iterdir() if child.is_dir() and (found := _find(child))]
    stage = children[0].pretrain if [child.path.name for child in children] == [_STAGE] else None
    if stage is not None:  # the folder of a run whose second stage has not begun
        return [_only_stage(stage, path)]
    if not children:
        wanted = ", ".join(_MARKS)
        raise CheckpointError(
            f"{path} is not a run directory (none of {wanted}) and holds none; "
            "give a directory written by `relatum train` or a folder of such directories."
        )
    return sorted(children, key=_plainest_first)


def _is_run(path: Path) -> bool:
    return any((path / mark).is_file() for mark in _MARKS)


def _find(path: Path) -> RunRecord | None:
    """Read the run in `path`: one with its own files, or with a first stage alone; None without either."""
    stage = _stage(path)
    if not _is_run(path):
        return None if stage is None else _only_stage(stage, path)
    record = _read(path)
    return _only_stage(record, path) if record.reconstructs else replace(record, pretrain=stage)


def _stage(run: Path) -> RunRecord | None:
    """Read the masked pretraining inside a run directory, if there is one."""
    record = _read(run / _STAGE) if _is_run(run / _STAGE) else None
    return record if record is not None and record.reconstructs else None


def _probe(path: Path) -> dict[str, dict[str, Any]]:
    found = read_object(path)
    for splits in found.values():
        if not isinstance(splits, dict) or not all(isinstance(scores, dict) for scores in splits.values()):
            raise CheckpointError(f"{path} does not map methods and splits to scores; delete it and probe again.")
    return found


def _only_stage(stage: RunRecord, path: Path) -> RunRecord:
    """Return the run at `path`, of which nothing but the pretraining is there."""
    full = path.resolve()
    name = f"{full.parent.name}/{full.name}" if full.name == _STAGE else full.name
    return RunRecord(path, name, {}, stage.config, (), {}, pretrain=stage)


def _plainest_first(record: RunRecord) -> tuple[Any, ...]:
    relation = record.config.get("relation", {}).get("name", "none")
    objective = record.config.get("objective", {}).get("name", "cross-entropy")
    # Digits count as numbers, so that seed 10 comes after seed 2; the flag keeps words and numbers apart.
    parts = [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"([0-9]+)", record.name)]
    return (relation != "none", objective != "cross-entropy", parts)


def _read(path: Path) -> RunRecord:
    rows, skipped = read_metrics(path / "metrics.jsonl")
    scores = read_object(path / "scores.json")
    if not all(isinstance(value, dict) for value in scores.values()):
        raise CheckpointError(f"{path / 'scores.json'} does not map splits to scores; run `relatum evaluate` again.")
    name = path.name or path.resolve().name
    manifest, settings = read_object(path / "manifest.json"), read_settings(path)
    record = RunRecord(path, name, manifest, settings, rows, scores, skipped)
    return replace(record, probe=_probe(path / "probe.json")) if record.reconstructs else record


def _distinct_names(records: list[RunRecord]) -> list[RunRecord]:
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return records
    named = []
    for record in records:
        full = record.path.resolve()
        named.append(
            replace(record, name=f"{full.parent.name}/{full.name}") if names.count(record.name) > 1 else record
        )
    if len({record.name for record in named}) < len(named):
        named = [replace(record, name=f"{i}: {record.name}") for i, record in enumerate(named, start=1)]
    return named
