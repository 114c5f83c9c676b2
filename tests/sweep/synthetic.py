"""A sweep directory as it is after a sweep, made without training: chosen scores in the files that a run writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from relatum.config_files import to_dict, to_toml
from relatum.evaluate.scores import score
from relatum.prior import ClassPrior
from relatum.recipes.catalog import find_recipe
from relatum.sweep.grid import Point, parse_points
from relatum.sweep.plan import Base, Job, plan_jobs
from relatum.sweep.record import Sweep, joined

COUNTS = (300, 200, 150, 80, 40, 25, 10, 6, 3)


def base(folder: Path, recipe: str = "shapes-lt", **settings) -> Base:
    """A sweep of `recipe` in `folder` without overrides; `settings` replace rooms of its configuration."""
    return Base(recipe, replace(find_recipe(recipe).config(), **settings), (), folder)


def scores(seed: int, rare: float) -> dict:
    """Scores of random logits in which the right class wins the more often, the larger its count or `rare` is."""
    random = np.random.default_rng(seed)
    targets = np.repeat(np.arange(len(COUNTS)), 40)
    logits = random.normal(0, 1, (len(targets), len(COUNTS)))
    ease = np.interp(np.log(COUNTS), (np.log(3), np.log(300)), (rare, 3.5 - 0.3 * rare))
    logits[np.arange(len(targets)), targets] += ease[targets]
    return score(logits, targets, ClassPrior(COUNTS), bootstrap=0).to_dict()


def write_run(job: Job, found: dict, *, status: str = "finished", epochs: int = 12, scale: float = 1.0) -> Path:
    """Write what `relatum train` leaves in the directory of `job`; losses begin at about 3 x `scale`."""
    job.result.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(job.seed)
    rows = []
    for epoch in range(1, epochs + 1):
        loss = scale * (0.5 + 2.9 * np.exp(-epoch / 4) + random.normal(0, 0.03))
        grown = found["top1"] * (1 - np.exp(-epoch / 3)) + random.normal(0, 0.005)
        rows.append({"kind": "train", "epoch": float(epoch), "step": 8 * epoch, "loss": float(loss)})
        rows.append({"kind": "eval", "split": "test", "epoch": float(epoch), "step": 8 * epoch, "top1": float(grown)})
    manifest = {
        "status": status, "seed": job.seed, "steps": 8 * epochs, "seconds": 60.0 + job.seed,
        "class_counts": list(COUNTS), "class_names": [str(k) for k in range(len(COUNTS))],
    }  # fmt: skip
    (job.result / "manifest.json").write_text(json.dumps(manifest))
    (job.result / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (job.result / "config.json").write_text(json.dumps(to_dict(job.config)))
    (job.result / "config.toml").write_text(to_toml(job.config))
    if status == "finished":
        (job.result / "scores.json").write_text(json.dumps({"test": found}))
    return job.result


def finished_sweep(folder: Path, over: tuple[str, ...], seeds: tuple[int, ...], rare=None) -> tuple[Sweep, list[Job]]:
    """A sweep whose runs are all finished; `rare(values)` says how well rare classes fare at a point."""
    start = base(folder)
    jobs = plan_jobs(start, parse_points(over, start.config), seeds)
    for job in jobs:
        level = rare(job.point.values) if rare else 1.0
        write_run(job, scores(job.seed, level), scale=1.0 + 9.0 * (level > 1.5))
    found = joined(start, jobs, "relatum sweep shapes-lt")
    found.write()
    return found, jobs


def point(**values) -> Point:
    """A point; `objective__tau=1.0` is objective.tau."""
    return Point({key.replace("__", "."): value for key, value in values.items()})
