"""Wiring of long-tailed classification: settings in, task and loaders out."""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from relatum.config import EvalConfig, RunConfig
from relatum.config_files import check, to_dict, to_toml
from relatum.data.loaders import Loaders, build_loaders
from relatum.data.samplers import warn_double_correction
from relatum.errors import ConfigError, DataError
from relatum.evaluate import Scores, evaluate
from relatum.models import create_model
from relatum.models.freeze import freeze_backbone
from relatum.objectives import build_objective
from relatum.processes import is_first
from relatum.recipes.budget import within_minutes
from relatum.recipes.first_layer import check_sizes, whiten_if_asked
from relatum.recipes.quarantined import note_quarantine
from relatum.recipes.reopen import reopen
from relatum.relation import Relation, attach
from relatum.relation.build import build_spec, presence, stream_weights
from relatum.train import ClassificationTask, Display, Run, RunDirectory, fit, open_run
from relatum.train.device import pick_device
from relatum.train.run import finished_run
from relatum.trained import load_relation

# At a fiftieth of what training from scratch takes, Muon too leaves trained weights much as they were.
_GENTLE_MUON = 1e-3


def build(config: RunConfig, display: Display | None = None, encoder: str = "") -> tuple[ClassificationTask, Loaders]:
    """Build the task and the loaders of a recipe; every check of the settings runs before the data is read.

    Args:
        config: the settings.
        display: what to show while images are read.
        encoder: file of a pretrained encoder to start from; empty takes that of `config.model`, if there is one.
    """
    encoder = encoder or config.model.encoder
    _check_together(config, encoder)
    progress = None if display is None else display.loading
    loaders = build_loaders(config.data, seed=config.train.seed, epochs=config.train.epochs, progress=progress)
    _check_classes(loaders)
    objective = build_objective(config.objective, loaders.prior)
    if (config.data.mixup or config.data.cutmix) and not objective.accepts_soft_targets:
        raise ConfigError(
            f"objective {config.objective.name} needs one label per image; set data.mixup and data.cutmix to 0."
        )
    warn_double_correction(loaders.train.sampler.name, objective.corrects_prior, config.data.allow_double)
    torch.manual_seed(config.train.seed)
    model = create_model(config.model.name, loaders.prior.num_classes, encoder=encoder, **_model_options(config))
    if config.model.weights or encoder:
        _warn_large_steps(config)
    else:
        whiten_if_asked(model, loaders)
    check_sizes(model, loaders)
    frozen = freeze_backbone(model) if config.model.freeze == "backbone" else ()
    settings = config.relation
    task = ClassificationTask(
        model,
        objective,
        _attach(config, model),
        streams=stream_weights(settings),
        relation_lr_scale=settings.lr_scale,
        relation_weight_decay=None if settings.weight_decay < 0 else settings.weight_decay,
        presence=presence(settings) if settings.name != "none" else None,
        frozen=frozen,
    )
    return task, loaders


def run(config: RunConfig, recipe: str, out: Path, display: Display | None = None, encoder: str = "") -> Run:
    """Train the classifier of a recipe in the run directory `out`, or continue it there.

    Args:
        config: the settings.
        recipe: its name, for the record.
        out: the run directory.
        display: what to show.
        encoder: file of a pretrained encoder to start from; empty takes that of `config.model`, if there is one.
    """
    check(config, f"recipe {recipe}")
    display = display or Display(recipe, quiet=not is_first())
    config = within_minutes(config, out, lambda settings: build(settings, encoder=encoder), display)
    kept = replace(config, allow_changes=False)  # a permission for this once, not a setting of the run
    with open_run(out, to_dict(kept), to_toml(kept), allow_changes=config.allow_changes) as directory:
        return _run_in(directory, config, recipe, out, display, encoder)


def _run_in(
    directory: RunDirectory | None, config: RunConfig, recipe: str, out: Path, display: Display, encoder: str
) -> Run:
    task, loaders = build(config, display, encoder)
    set_aside = note_quarantine(config, loaders, directory, display)  # names the files; after it, all other changes
    if directory is not None:
        directory.check_data(loaders)
    before = finished_run(task, directory, len(loaders.train), config.train)
    if before is not None:
        display.say(f"{out} is finished already.")
        return before
    if directory is not None:
        directory.update_manifest(recipe=recipe, command=shlex.join(["relatum", *sys.argv[1:]]))
    values = {
        "model": to_dict(config.model),
        "model_kwargs": _size_option(config),
        "class_names": list(loaders.prior.names),
        "class_counts": loaders.prior.counts.tolist(),
        "preprocess": loaders.preprocess.to_dict(),
        **set_aside,
    }
    return fit(task, loaders, config.train, out=directory, evaluation=config.evaluate, values=values, display=display)


def _model_options(config: RunConfig) -> dict[str, Any]:
    settings = config.model
    names = ("head", "scale", "weights", "pool", "head_std", "head_bias", "drop_rate", "drop_path")
    return {**{name: getattr(settings, name) for name in names}, **_size_option(config)}


def _size_option(config: RunConfig) -> dict[str, int]:
    return {"img_size": config.data.image_size}


def _attach(config: RunConfig, model: torch.nn.Module) -> Relation | None:
    spec = build_spec(config.relation)
    return None if spec is None else attach(model, spec)


def _bring_back_relation(config: RunConfig, model: torch.nn.Module, path: Path) -> None:
    relation = _attach(config, model)
    if relation is None:
        raise ConfigError(f"{path} was trained without a relation; mini-batch inference needs one.")
    load_relation(path, relation)


def _check_together(config: RunConfig, encoder: str = "") -> None:
    """Checks of settings that only make sense side by side."""
    build_spec(config.relation), stream_weights(config.relation), presence(config.relation)
    if config.evaluate.mini_batch and config.relation.name == "none":
        raise ConfigError("evaluate.mini_batch keeps a relation at evaluation; there is none (relation.name is none).")
    if config.relation.name != "none" and config.data.batch_size < 2:
        raise ConfigError(
            "a relation needs other samples: data.batch_size 1 leaves nothing to attend to; use 8 or more."
        )
    if config.model.freeze != "none" and not (config.model.weights or encoder):
        raise ConfigError(
            "model.freeze trains on features that must exist: give a trained model with --model.weights, or a "
            "pretrained encoder with --model.encoder."
        )
    if config.objective.name == "ldam" and config.model.head != "cosine":
        raise ConfigError("objective ldam works on cosines: set --model.head cosine.")
    if config.objective.name == "ldam" and config.model.scale != config.objective.scale:
        raise ConfigError("objective ldam and the cosine head must agree: set model.scale and objective.scale alike.")
    warmup, epochs = config.train.warmup_epochs, config.train.epochs
    if warmup >= epochs:
        raise ConfigError(f"train.warmup_epochs is {warmup:g}; it must be less than train.epochs, {epochs}.")


def _warn_large_steps(config: RunConfig) -> None:
    """Warn when what a model brings along would be forgotten at once."""
    train = config.train
    if train.optimizer == "muon" and train.lr > _GENTLE_MUON and config.model.freeze == "none":
        warnings.warn(
            f"muon with a learning rate of {train.lr:g} is made for training from scratch: its steps are equally large "
            "in every direction, and little of the loaded weights will be left. To fine-tune them, set "
            "--train.optimizer adamw --train.lr 1e-4 --train.weight-decay 0.05.",
            UserWarning,
            stacklevel=2,
        )


def _check_classes(loaders: Loaders) -> None:
    present = [name for name, count in zip(loaders.prior.names, loaders.prior.counts, strict=True) if count]
    if len(present) < 2:
        raise DataError(
            f"the training data has one class with images ('{present[0]}'): there is nothing to tell apart. "
            "Add a second class."
        )


def evaluate_run(path: Path, evaluation: EvalConfig, data_root: str = "") -> dict[str, Scores]:
    """Score the plain model of a run directory on its evaluation splits, with other options than it was trained with.

    Args:
        path: the run directory.
        evaluation: shot rule and post-hoc options.
        data_root: replaces `data.root` of the run; empty keeps it.
    """
    trained, config, loaders = reopen(path, data_root)
    device = pick_device(config.train.device)
    if evaluation.mini_batch:
        _bring_back_relation(config, trained.model, path)
    bias = build_objective(config.objective, loaders.prior).sigmoid_bias
    model = trained.model.to(device)
    return {
        split: evaluate(model, loader, loaders.prior, config=evaluation, split=split, device=device, sigmoid_bias=bias)
        for split, loader in loaders.evals.items()
    }
