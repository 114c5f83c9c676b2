"""What has to be run: every point with every seed, and the first stages that several of them share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relatum.config import RunConfig
from relatum.sweep.grid import Point, with_settings

_HASH_LENGTH = 8


@dataclass(frozen=True)
class Job:
    """One child process: `relatum WORDS`, which writes into `path` and goes on there when it is started again.

    Args:
        name: name of the directory.
        path: the run directory.
        words: everything behind `relatum`.
        seed: seed of the training.
        point: the place in the grid; None for a shared first stage.
        config: the settings of the run.
        needs: name of the shared first stage that must be finished before; None without one.
    """

    name: str
    path: Path
    words: tuple[str, ...]
    seed: int
    point: Point | None
    config: RunConfig
    needs: str | None = None

    @property
    def result(self) -> Path:
        """The directory with manifest.json and scores.json: a first stage has its own inside the run."""
        return self.path if self.point is not None else self.path / "pretrain"


@dataclass(frozen=True)
class Base:
    """What all runs of a sweep share.

    Args:
        recipe: as on the command line.
        config: settings of the recipe with the overrides.
        overrides: those overrides as words.
        folder: directory of the sweep.
    """

    recipe: str
    config: RunConfig
    overrides: tuple[str, ...]
    folder: Path

    def words(self, point_words: Sequence[str], seed: int, path: Path) -> list[str]:
        """Return the command line of one run."""
        return ["train", self.recipe, *self.overrides, *point_words, f"--train.seed={seed}", f"--out={path}"]


def plan_jobs(base: Base, points: Sequence[Point], seeds: Sequence[int]) -> list[Job]:
    """Return all jobs in the order to run them: seed by seed, shared first stages before what needs them."""
    jobs: dict[str, Job] = {}
    for seed in seeds:
        runs = [_run(base, point, seed) for point in points]
        for run, point in zip(runs, points, strict=True):
            if run.needs is not None and run.needs not in jobs:
                jobs[run.needs] = _pretraining(base, point, seed, run.needs)
        jobs |= {run.name: run for run in runs}
    return list(jobs.values())


def shares_first_stage(config: RunConfig) -> bool:
    """Whether a run begins with a pretraining that other runs could share."""
    return config.pretrain.method != "none" and "pretrain" in config.stages


def stage_hash(config: RunConfig) -> str:
    """Return a short hash of all settings that the first stage depends on, whatever the seed and the directory."""
    from relatum.recipes.stages import pretrain_settings

    neutral = replace(config, out="", train=replace(config.train, seed=0))
    text = json.dumps(pretrain_settings(neutral), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def _run(base: Base, point: Point, seed: int) -> Job:
    name = f"{point.name}-s{seed}"
    path = base.folder / name
    config = point.config(base.config, train__seed=seed, out=str(path))
    words = base.words(point.words(), seed, path)
    needs = None
    if shares_first_stage(config):
        from relatum.recipes.stages import planned_stages

        planned_stages(config)  # refuses what contradicts a first stage
        needs = f"pretrain-{stage_hash(config)}-s{seed}"
        encoder = str(base.folder / needs)
        words += ["--stages", "finetune", f"--model.encoder={encoder}"]
        config = with_settings(config, {"stages": ["finetune"], "model.encoder": encoder})
    return Job(name, path, tuple(words), seed, point, config, needs)


def _pretraining(base: Base, point: Point, seed: int, name: str) -> Job:
    path = base.folder / name
    keys = _stage_keys(base, point)
    words = [*base.words(point.words(keys), seed, path), "--stages", "pretrain"]
    more: dict[str, Any] = {"train.seed": seed, "out": str(path), "stages": ["pretrain"]}
    config = with_settings(base.config, {**{key: point.values[key] for key in keys}, **more})
    return Job(name, path, tuple(words), seed, None, config)


def _stage_keys(base: Base, point: Point) -> list[str]:
    """Return the swept keys that the first stage depends on.

    The others are left out of its command, so that a grid that grows finds the same first stage again.
    """
    wanted, kept = stage_hash(point.config(base.config)), dict(point.values)
    for key in sorted(point.values):
        fewer = {name: value for name, value in kept.items() if name != key}
        config = with_settings(base.config, fewer)
        if shares_first_stage(config) and stage_hash(config) == wanted:
            kept = fewer
    return list(kept)
