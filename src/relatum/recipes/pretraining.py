"""The first stage: masked pretraining on the images of a recipe, in the folder `pretrain` of its run directory."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from relatum.config import PretrainConfig, RunConfig
from relatum.config_files import to_toml
from relatum.data.loaders import Loaders, build_loaders
from relatum.data.plain import as_evaluated
from relatum.errors import CheckpointError, ConfigError
from relatum.evaluate.probe import probe_encoder
from relatum.models.mae import MaskedAutoencoder, create_mae, save_encoder
from relatum.processes import is_first, wait
from relatum.recipes.pretraining_settings import autoencoder_arguments, pretrain_data, pretrain_settings, pretrain_train
from relatum.recipes.quarantined import note_quarantine
from relatum.relation import Relation, attach
from relatum.relation.build import build_spec, presence, stream_weights
from relatum.relation.relation import MODULE_NAME
from relatum.train import Display, MaskedTask, Run, RunDirectory, fit, open_run
from relatum.train.checkpoint import latest_checkpoint, write_atomically
from relatum.train.device import pick_device
from relatum.train.run import finished_run

FOLDER = "pretrain"
ENCODER_FILE = "encoder.safetensors"
PROBE_FILE = "probe.json"


def build_pretraining(config: RunConfig, display: Display | None = None) -> tuple[MaskedTask, Loaders]:
    """Build task and loaders of the first stage; the model comes first, since its mistakes need no data to be seen."""
    settings, train = config.pretrain, pretrain_train(config)
    if settings.warmup_epochs >= settings.epochs:
        raise ConfigError(
            f"pretrain.warmup_epochs is {settings.warmup_epochs:g}; it must be less than pretrain.epochs, "
            f"{settings.epochs}."
        )
    torch.manual_seed(config.train.seed)
    model = create_mae(**autoencoder_arguments(config))
    relation = _attach(config, model)
    progress = None if display is None else display.loading
    data = pretrain_data(config)
    loaders = build_loaders(data, seed=train.seed, epochs=train.epochs, progress=progress)
    task = MaskedTask(
        model,
        relation,
        mean=loaders.preprocess.mean,
        std=loaders.preprocess.std,
        streams=stream_weights(config.relation) if relation is not None else "mean",
        relation_lr_scale=config.relation.lr_scale,
        relation_weight_decay=None if config.relation.weight_decay < 0 else config.relation.weight_decay,
        presence=presence(config.relation) if relation is not None else None,
        pictures=settings.pictures,
    )
    return task, loaders


def pretrain(config: RunConfig, recipe: str, out: Path, display: Display | None = None) -> Run:
    """Run the first stage of a recipe in `out`/pretrain, or continue it; a finished one is not run again."""
    display = display or Display(recipe, quiet=not is_first())
    text = to_toml(replace(config, allow_changes=False))  # a permission for this once, not a setting of the run
    settings = pretrain_settings(config)
    with open_run(out / FOLDER, settings, text, allow_changes=config.allow_changes) as directory:
        done = _pretrain_in(directory, config, recipe, out / FOLDER, display)
    wait()  # the next stage of all processes reads what the first has written
    return done


def _pretrain_in(directory: RunDirectory | None, config: RunConfig, recipe: str, folder: Path, display: Display) -> Run:
    task, loaders = build_pretraining(config, display)
    set_aside = note_quarantine(config, loaders, directory, display)  # names the files; after it, all other changes
    if directory is not None:
        directory.check_data(loaders)
    done = finished_run(task, directory, len(loaders.train), pretrain_train(config))
    if done is None:
        if directory is not None:
            directory.update_manifest(recipe=recipe, stage=FOLDER, command=shlex.join(["relatum", *sys.argv[1:]]))
        values = {"masked": autoencoder_arguments(config), "preprocess": loaders.preprocess.to_dict(), **set_aside}
        done = fit(task, loaders, pretrain_train(config), out=directory, values=values, display=display)
    else:
        display.say(f"{folder} is finished already.")
    if done.status == "finished" and is_first():
        save_encoder(load_autoencoder(folder), folder / ENCODER_FILE)
        _judge(config, folder, display)
    return done


def load_autoencoder(path: Path) -> MaskedAutoencoder:
    """Load the masked autoencoder, encoder and decoder, of a pretraining directory or of the run that holds it."""
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    state, problems = latest_checkpoint(folder / "checkpoints")
    if state is None or "masked" not in state.values:
        raise CheckpointError(f"{path} holds no pretraining with a usable checkpoint. {' '.join(problems)}".rstrip())
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    model = create_mae(**state.values["masked"])
    tensors = {k: v for k, v in state.part("model").items() if not k.startswith(f"{MODULE_NAME}.")}
    model.load_state_dict(tensors)
    return model.eval()


def encoder_file(place: str) -> str:
    """Return the file of `model.encoder`: a file as it is, of a run directory the encoder that its first stage left."""
    path = Path(place)
    if not path.is_dir():
        return place
    for candidate in (path / ENCODER_FILE, path / FOLDER / ENCODER_FILE):
        if candidate.is_file():
            return str(candidate)
    raise ConfigError(
        f"{place} has no finished pretraining ({FOLDER}/{ENCODER_FILE}); finish it with --stages pretrain, or name the "
        "weights file of an encoder."
    )


def _judge(config: RunConfig, folder: Path, display: Display) -> None:
    """Write probe.json: what the nearest neighbours among the finished encoder's features say, by shot group."""
    other = bool(config.pretrain.root or config.pretrain.train_list)
    no_labels = other and not (config.data.root or config.data.train_list)
    if not config.pretrain.neighbours or (folder / PROBE_FILE).exists() or no_labels:
        return
    size = {"image_size": config.pretrain.image_size, "resize": 0} if config.pretrain.image_size else {}
    data = replace(as_evaluated(config.data), **size)  # type: ignore[arg-type]
    loaders = build_loaders(data, seed=config.train.seed, rank=0, world=1)  # the first process judges alone
    if not loaders.evals:
        return
    k = min(config.pretrain.neighbours, len(loaders.train.source))
    device = pick_device(config.train.device)
    encoder = load_autoencoder(folder).encoder
    rule = config.evaluate.shot_rule
    found = probe_encoder(encoder, loaders, methods=("k-nn",), k=k, pool="avg", rule=rule, bootstrap=0, device=device)
    entry = {method: {split: s.to_dict() for split, s in by.items()} for method, by in found.items()}
    write_atomically(folder / PROBE_FILE, json.dumps(entry).encode())
    for split, scores in found["k-nn"].items():
        words = "  ".join(f"{name} {value}" for name, value in scores.shown().items())
        display.say(f"k-NN with the encoder's features, {k} neighbours, {split}:  {words}")


def _attach(config: RunConfig, model: MaskedAutoencoder) -> Relation | None:
    settings = config.pretrain
    if settings.relation == "none":
        if settings.relation_at != PretrainConfig().relation_at:
            raise ConfigError("pretrain.relation_at needs a relation: set --pretrain.relation batchformer-v2 too.")
        return None
    spec = build_spec(replace(config.relation, name=settings.relation, at=settings.relation_at))
    return None if spec is None else attach(model, spec)
