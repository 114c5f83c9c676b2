"""The stages of a recipe, one after another in one run directory: pretraining, where it has one, then fine-tuning."""

from __future__ import annotations

import contextlib
from pathlib import Path

from relatum.config import RunConfig, Stage
from relatum.config_files import check
from relatum.errors import ConfigError
from relatum.processes import is_first
from relatum.recipes import classification
from relatum.recipes.pretraining import FOLDER, encoder_file, pretrain
from relatum.recipes.pretraining_settings import pretrain_settings
from relatum.train import Display, Run
from relatum.train.lock import RunLock

__all__ = ["planned_stages", "pretrain_settings", "run"]


def run(config: RunConfig, recipe: str, out: Path, display: Display | None = None) -> Run:
    """Run the stages of a recipe in `out`, or continue where they stopped.

    The first stage lives in `out`/pretrain. The second starts from its encoder, or from `model.encoder`.

    Returns:
        What the last stage came to; an interrupted stage ends it all.
    """
    check(config, f"recipe {recipe}")
    stages = planned_stages(config)
    # Each stage locks its own directory; the lock around both keeps others out of the first during the second.
    # Of several processes the first holds it, as it alone writes there.
    with RunLock(out) if len(stages) > 1 and is_first() else contextlib.nullcontext():
        return _run_stages(stages, config, recipe, out, display)


def _run_stages(stages: list[Stage], config: RunConfig, recipe: str, out: Path, display: Display | None) -> Run:
    done: Run | None = None
    for number, stage in enumerate(stages, 1):
        title = f"{recipe} ({number}/{len(stages)} {stage})" if len(stages) > 1 else recipe
        shown = display or Display(title, quiet=not is_first())
        if stage == "pretrain":
            done = pretrain(config, recipe, out, shown)
        else:
            done = classification.run(config, recipe, out, shown, encoder=_encoder(config, out))
        if done.status == "interrupted":
            break
    if done is None:
        raise ConfigError("stages is empty; name pretrain, finetune or both.")
    return done


def planned_stages(config: RunConfig) -> list[Stage]:
    """Return the stages that will run, in order; settings that contradict each other are refused."""
    has_first = config.pretrain.method != "none"
    if len(set(config.stages)) != len(config.stages):
        raise ConfigError(f"stages names {' and '.join(config.stages)}; each stage once, please.")
    if not has_first and config.stages == ("pretrain",):
        raise ConfigError("this recipe has no pretraining; set --pretrain.method mae, with a ViT as model.name.")
    known: tuple[Stage, ...] = ("pretrain", "finetune")
    stages = [stage for stage in known if stage in config.stages and (has_first or stage == "finetune")]
    if "pretrain" in stages and config.minutes:
        raise ConfigError("minutes is for recipes of one stage, and this one pretrains; set the epochs of each stage.")
    if "pretrain" in stages and config.model.encoder:
        raise ConfigError("model.encoder takes the place of the first stage; add --stages finetune.")
    if "pretrain" in stages and config.model.weights:
        raise ConfigError("model.weights would overwrite what the first stage learns; add --pretrain.method none.")
    return stages


def _encoder(config: RunConfig, out: Path) -> str:
    """The encoder file from which the second stage starts; empty for none."""
    if config.model.encoder:
        return encoder_file(config.model.encoder)
    if config.pretrain.method == "none":
        return ""
    if (out / FOLDER).is_dir():
        return encoder_file(str(out / FOLDER))
    raise ConfigError(
        f"there is no first stage in {out}; leave --stages out, give an encoder with --model.encoder, or train from "
        "random weights with --pretrain.method none."
    )
