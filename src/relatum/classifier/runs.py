"""Runs in, runs out: tune the classifier of a run directory, and write the result as one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from relatum.classifier.features import CachedFeatures, cache_features
from relatum.classifier.linear import fold, linear_classifier
from relatum.classifier.scaling import LogitAdjustment
from relatum.classifier.tools import TOOLS, Retuned, retune
from relatum.config import RunConfig
from relatum.config_files import to_dict, to_toml
from relatum.data.loaders import Loaders
from relatum.errors import CheckpointError, ConfigError, DataError
from relatum.objectives import build_objective
from relatum.recipes.reopen import reopen
from relatum.report import load_records
from relatum.train.checkpoint import State, latest_checkpoint, save_checkpoint
from relatum.train.device import pick_device
from relatum.train.record import RunDirectory, surroundings
from relatum.trained import load

# What a checkpoint says besides tensors that is still true of the model with another classifier.
_KEPT_VALUES = ("model", "model_kwargs", "class_names", "class_counts", "preprocess")
_DOUBLE = (
    f"{LogitAdjustment.name}: the training of this run corrected for the class frequencies already, so this is a "
    "double correction; frequent classes suffer."
)


@dataclass(frozen=True)
class TunedRun:
    """The classifiers that `retune_run` made for one run.

    Args:
        path: the run directory.
        config: its settings.
        model: its plain model, not changed.
        features: of that model.
        results: by tool name, "as trained" first.
        seed: by which they were made.
        notes: what to bear in mind with the numbers.
    """

    path: Path
    config: RunConfig
    model: nn.Module
    features: CachedFeatures
    results: dict[str, Retuned]
    seed: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but models and features, in JSON types."""
        return {
            "run": str(self.path),
            "held_out": self.features.held_from,
            "held_out_samples": len(self.features.held),
            "seed": self.seed,
            "notes": list(self.notes),
            "methods": {name: result.to_dict() for name, result in self.results.items()},
        }


def retune_run(
    path: Path,
    tools: Sequence[str] = tuple(TOOLS),
    *,
    seed: int = 0,
    data_root: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> TunedRun:
    """Apply classifier tools to the plain model of a run directory.

    Args:
        path: the run directory.
        tools: names from `relatum.classifier.TOOLS`.
        seed: of the hold-out and of everything that is drawn.
        data_root: replaces `data.root` of the run; empty keeps it.
        progress: called with (images done, images in all) while features are computed.
    """
    trained = load(path)
    _, head = linear_classifier(trained.model)  # before any image is read
    _, config, loaders = reopen(path, data_root, trained)
    if not loaders.evals:
        raise DataError(f"{path} was trained without a validation or test split: there is nothing to report on.")
    count = _counter(loaders, progress)
    device = pick_device(config.train.device)
    features = cache_features(trained.model, loaders, seed=seed, device=device, progress=count)
    settings = config.evaluate
    results = retune(features, head, tools, seed=seed, rule=settings.shot_rule, bootstrap=settings.bootstrap)
    notes = [note for result in results.values() for note in result.notes]
    if LogitAdjustment.name in results and _corrects(config, loaders):
        notes.append(_DOUBLE)
    return TunedRun(path, config, trained.model.cpu(), features, results, seed, tuple(notes))


def write_run(tuned: TunedRun, method: str, out: Path) -> Path:
    """Write the run again with the classifier of `method`: a run directory that every verb accepts.

    Its scores are those of the reported splits; its manifest says from which run and by which tool it came.
    """
    result = tuned.results[method]
    model = fold(tuned.model, result.head)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; give --out a new directory.")
    before, _ = latest_checkpoint(tuned.path / "checkpoints")
    if before is None:
        raise CheckpointError(f"{tuned.path} has no usable checkpoint; train it again.")
    config = replace(tuned.config, out=str(out))
    directory = RunDirectory(out, to_dict(config), to_toml(config))
    state = State(values={key: before.values[key] for key in _KEPT_VALUES if key in before.values})
    state.add("model", model.state_dict())
    manifest = load_records([tuned.path])[0].manifest
    save_checkpoint(directory.checkpoints, state, int(manifest.get("steps", 0)))
    directory.write_scores({split: scores.to_dict() for split, scores in result.scores.items()})
    command = shlex.join(["relatum", *sys.argv[1:]])
    own = {**surroundings(), "command": command, "classifier": _origin(tuned, result)}
    directory.update_manifest(**{**manifest, **own})
    return out


def _origin(tuned: TunedRun, result: Retuned) -> dict[str, Any]:
    entry = result.to_dict()
    kept = {key: entry[key] for key in ("method", "settings", "chosen", "seconds", "notes")}
    held = {"held_out": tuned.features.held_from} if result.chosen else {}
    return {"from": str(tuned.path.resolve()), **kept, **held, "seed": tuned.seed}


def _counter(loaders: Loaders, progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    total = len(loaders.train.source) + sum(len(loader.source) for loader in loaders.evals.values())
    done = 0

    def count(images: int) -> None:
        nonlocal done
        done += images
        progress(done, total)

    return count


def _corrects(config: RunConfig, loaders: Loaders) -> bool:
    return loaders.train.sampler.balances or build_objective(config.objective, loaders.prior).corrects_prior
