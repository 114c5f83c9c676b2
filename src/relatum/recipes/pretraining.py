"""The first stage: masked pretraining on the images of a recipe, in the folder `pretrain` of its run directory."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from relatum.config import DataConfig, RunConfig, TrainConfig
from relatum.config_files import to_dict, to_toml
from relatum.data.loaders import Loaders, build_loaders
from relatum.data.splits import open_splits, read_splits
from relatum.errors import CheckpointError, ConfigError
from relatum.models.mae import MaskedAutoencoder, create_mae
from relatum.relation import Relation, attach
from relatum.relation.build import build_spec, stream_weights
from relatum.relation.relation import MODULE_NAME
from relatum.train import Display, MaskedTask, Run, RunDirectory, fit
from relatum.train.checkpoint import latest_checkpoint, write_atomically
from relatum.train.run import finished_run

FOLDER = "pretrain"
ENCODER_FILE = "encoder.safetensors"
# Where and how fast it is computed, and how far: none of it changes what is learned up to a step.
_NO_MATTER = (
    ("train", "device"),
    ("train", "threads"),
    ("train", "tensorboard"),
    ("train", "max_steps"),
    ("data", "workers"),
)
LR_BATCH = 256  # the published base rates are for this many images per step


def pretrain_settings(config: RunConfig) -> dict[str, Any]:
    """Return all settings on which the first stage depends: runs that agree in them may share its encoder."""
    kept: dict[str, Any] = {
        "pretrain": to_dict(config.pretrain),
        "data": to_dict(_data(config)),
        "model": {"name": config.model.name},
        "train": to_dict(_train(config)),
    }
    if config.pretrain.relation != "none":
        kept["relation"] = to_dict(config.relation)
    if config.pretrain.subset == "balanced":  # as many images as the tail of the second stage has
        kept["tail"] = {"long_tail": config.data.long_tail, "largest": config.data.largest}
    for section, key in _NO_MATTER:
        del kept[section][key]
    return kept


def build_pretraining(config: RunConfig, display: Display | None = None) -> tuple[MaskedTask, Loaders]:
    """Build task and loaders of the first stage; the model comes first, since its mistakes need no data to be seen."""
    settings, train = config.pretrain, _train(config)
    if settings.warmup_epochs >= settings.epochs:
        raise ConfigError(
            f"pretrain.warmup_epochs is {settings.warmup_epochs:g}; it must be less than pretrain.epochs, "
            f"{settings.epochs}."
        )
    torch.manual_seed(config.train.seed)
    model = create_mae(**_model_arguments(config))
    relation = _attach(config, model)
    progress = None if display is None else display.loading
    data = _of_the_subset(config, _data(config))
    loaders = build_loaders(data, seed=train.seed, epochs=train.epochs, progress=progress)
    task = MaskedTask(
        model,
        relation,
        mean=loaders.preprocess.mean,
        std=loaders.preprocess.std,
        streams=stream_weights(config.relation) if relation is not None else "mean",
        relation_lr_scale=config.relation.lr_scale,
        relation_weight_decay=None if config.relation.weight_decay < 0 else config.relation.weight_decay,
        pictures=settings.pictures,
    )
    return task, loaders


def pretrain(config: RunConfig, recipe: str, out: Path, display: Display | None = None) -> Run:
    """Run the first stage of a recipe in `out`/pretrain, or continue it; a finished one is not run again."""
    display = display or Display(recipe)
    directory = RunDirectory(out / FOLDER, pretrain_settings(config), to_toml(config))
    task, loaders = build_pretraining(config, display)
    done = finished_run(task, directory, len(loaders.train), _train(config))
    if done is None:
        directory.update_manifest(recipe=recipe, stage=FOLDER, command=shlex.join(["relatum", *sys.argv[1:]]))
        values = {"masked": _model_arguments(config), "preprocess": loaders.preprocess.to_dict()}
        done = fit(task, loaders, _train(config), out=directory, values=values, display=display)
    else:
        display.say(f"{directory.path} is finished already.")
    if done.status == "finished":
        _write_encoder(directory.path)
    return done


def load_autoencoder(path: Path) -> MaskedAutoencoder:
    """Load the masked autoencoder, encoder and decoder, of a pretraining directory or of the run that holds it."""
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    state, problems = latest_checkpoint(folder / "checkpoints")
    if state is None or "masked" not in state.values:
        raise CheckpointError(f"{path} holds no pretraining with a usable checkpoint. {' '.join(problems)}".rstrip())
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


def _write_encoder(folder: Path) -> None:
    """Leave the encoder as a file that timm's model of that name loads; nothing is missing in it but the head."""
    encoder: nn.Module = load_autoencoder(folder).encoder
    write_atomically(folder / ENCODER_FILE, save(encoder.state_dict()))


def _model_arguments(config: RunConfig) -> dict[str, Any]:
    """The arguments of `create_mae`, as JSON values."""
    settings = config.pretrain
    return {
        "name": config.model.name,
        "img_size": settings.image_size or config.data.image_size,
        "decoder_width": settings.decoder_width or None,
        "decoder_depth": settings.decoder_depth or None,
        "decoder_heads": settings.decoder_heads or None,
        "mask": settings.mask,
        "ratio": settings.ratio,
        "normalised": settings.pixels == "normalised",
    }


def _attach(config: RunConfig, model: MaskedAutoencoder) -> Relation | None:
    settings = config.pretrain
    if settings.relation == "none":
        return None
    spec = build_spec(replace(config.relation, name=settings.relation, at=settings.relation_at))
    return None if spec is None else attach(model, spec)


def _train(config: RunConfig) -> TrainConfig:
    """Seed, device, precision and the like of `train`; optimizer and schedule of `pretrain`."""
    settings = config.pretrain
    return replace(
        config.train,
        epochs=settings.epochs,
        optimizer="adamw",
        lr=settings.lr,
        lr_batch=LR_BATCH,
        momentum=0.9,
        beta2=settings.beta2,
        weight_decay=settings.weight_decay,
        layer_decay=1.0,
        decay_all=False,
        schedule="cosine",
        warmup_epochs=settings.warmup_epochs,
        warmup_start=0.0,
        min_lr=0.0,
        clip=settings.clip,
        accumulate=settings.accumulate,
        ema=0.0,
        eval_every=settings.eval_every,
    )


def _data(config: RunConfig) -> DataConfig:
    """The data of the second stage without what belongs to labels or to strong augmentation."""
    settings = config.pretrain
    data = replace(
        config.data,
        augment=settings.augment,
        batch_size=settings.batch_size,
        cutout=0,
        erasing=0.0,
        repeats=1,
        mixup=0.0,
        cutmix=0.0,
        sampler="instance",
        drs_start=1.0,
    )
    if settings.image_size:
        data = replace(data, image_size=settings.image_size, resize=0)
    if settings.root or settings.train_list:
        return _other_images(config, data)
    return data if settings.subset == "same" else replace(data, long_tail="none", largest=0)


def _other_images(config: RunConfig, data: DataConfig) -> DataConfig:
    settings = config.pretrain
    if settings.subset != "same":
        raise ConfigError("pretrain.subset chooses among the images of data; leave it out with pretrain.root.")
    kind = "list" if settings.train_list else "auto"
    lists = {"train_list": settings.train_list, "val_list": "", "test_list": "", "class_names": ""}
    # All of it is there to learn from: nothing is cut to a tail, and nothing held out.
    return replace(data, kind=kind, root=settings.root, long_tail="none", val_fraction=0.0, **lists)  # type: ignore[arg-type]


def _of_the_subset(config: RunConfig, data: DataConfig) -> DataConfig:
    """Complete the data settings by what only the data itself tells: the size of a balanced subset."""
    subset = config.pretrain.subset
    if subset == "same":
        return data
    if len(read_splits(config.data)) == 1:
        raise ConfigError(
            "pretrain.subset needs data with a validation or test split of its own: images held out of the training "
            "split would be among those of the first stage."
        )
    if subset == "all":
        return data
    train = open_splits(config.data)["train"]
    return replace(data, long_tail="balanced", largest=max(len(train) // train.num_classes, 1))
