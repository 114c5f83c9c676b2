"""The settings of the first stage, made of those of the recipe: data, optimizer, autoencoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relatum.config import DataConfig, RunConfig, TrainConfig
from relatum.config_files import to_dict
from relatum.data.plain import without_mixing
from relatum.data.splits import open_splits, read_splits
from relatum.errors import ConfigError

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
        "train": to_dict(pretrain_train(config)),
    }
    if config.pretrain.relation != "none":
        kept["relation"] = to_dict(config.relation)
    if config.pretrain.subset == "balanced":  # as many images as the tail of the second stage has
        kept["tail"] = {"long_tail": config.data.long_tail, "largest": config.data.largest}
    for section, key in _NO_MATTER:
        del kept[section][key]
    return kept


def pretrain_train(config: RunConfig) -> TrainConfig:
    """Seed, device, precision and the like of `train`; optimizer and schedule of `pretrain`."""
    settings = config.pretrain
    return replace(
        config.train,
        epochs=settings.epochs,
        optimizer="adamw",
        nesterov=False,
        adamw_scale=TrainConfig.adamw_scale,
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
        without_mixing(config.data),
        augment=settings.augment,
        batch_size=settings.batch_size,
        policy_end=1.0,
        cutout=0,
        erasing=0.0,
        repeats=1,
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


def pretrain_data(config: RunConfig) -> DataConfig:
    """Return the data settings of the first stage; of a balanced subset only the data itself tells the size."""
    data, subset = _data(config), config.pretrain.subset
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


def autoencoder_arguments(config: RunConfig) -> dict[str, Any]:
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
