"""`relatum probe`: how good are the features of a run, whatever its classifier says."""

from __future__ import annotations

import json as json_format
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from torch import nn

from relatum.arguments import call
from relatum.config import RunConfig
from relatum.errors import CheckpointError
from relatum.evaluate.linear_probe import LinearProbe, Objective
from relatum.evaluate.probe import EncodedSplits, check_probe, encode_splits, probe_features
from relatum.terminal import bar
from relatum.verbs import Flag, MaybePath, Run, ShotRule

Methods = Annotated[tuple[Literal["k-nn", "linear"], ...], tyro.conf.arg(metavar="METHOD ...")]
_ENCODER = "encoder."


def probe(args: list[str]) -> int:
    """`relatum probe RUN`."""

    def run(
        run: Run,
        /,
        methods: Methods = ("k-nn", "linear"),
        k: int = 20,
        balanced: Flag = False,
        pool: Literal["default", "avg", "token"] = "default",
        objective: Objective = "cross-entropy",
        epochs: int = 100,
        shot_rule: ShotRule = "standard",
        data_root: MaybePath = None,
        json: Flag = False,
    ) -> int:
        """Judge the frozen encoder of a run by its features: k nearest neighbours, and a linear layer.

        Args:
            run: run directory (fine-tuned, or of a pretraining stage) or checkpoint file.
            methods: any of k-nn, linear.
            k: neighbours that vote.
            balanced: divide the votes for each class by its share of the training images.
            pool: features: what enters the classifier, the mean of the patches (avg), or the class token.
            objective: loss of the linear layer.
            epochs: epochs of the linear layer, on features that are computed once.
            shot_rule: boundary between many, medium and few.
            data_root: where the data is now, if it has moved.
            json: print all scores as JSON.
        """
        started, settings = time.perf_counter(), LinearProbe(objective, epochs)
        check_probe(methods, k, max(k, 1), settings=settings)  # the number of images is not known yet
        splits, prior = _features(run, pool, str(data_root or ""), methods, k)
        with bar("linear probe") as show:
            found = probe_features(
                splits,
                prior,
                methods=methods,
                k=k,
                balanced=balanced,
                settings=settings,
                rule=shot_rule,
                progress=lambda _, done, total: show(done, total),
            )
        scores = {method: {split: s.to_dict() for split, s in by.items()} for method, by in found.items()}
        if json:
            print(json_format.dumps(scores, indent=1))
            return 0
        _print(scores, splits, time.perf_counter() - started)
        return 0

    return call(run, "relatum probe", args)


def _features(path: Path, pool: str, data_root: str, methods: tuple[str, ...], k: int) -> tuple[EncodedSplits, Any]:
    """Return the features of all splits of a run, and the prior of its training split."""
    from relatum.data.loaders import build_loaders
    from relatum.data.plain import as_evaluated
    from relatum.train.device import pick_device

    encoder, config = _encoder_of(path)
    data = replace(config.data, root=data_root) if data_root else config.data
    # The order and the augmentation of training do not matter here: each image is seen once, as at evaluation.
    loaders = build_loaders(as_evaluated(data), seed=config.train.seed)
    check_probe(methods, k, len(loaders.train.source))
    with bar("features") as show:
        splits = encode_splits(
            encoder,
            loaders,
            pool=pool,
            device=pick_device(config.train.device),
            progress=lambda _, done, total: show(done, total),
        )
    return splits, loaders.prior


def _encoder_of(path: Path) -> tuple[nn.Module, RunConfig]:
    """Return the encoder behind `path`, with its classifier if it has one, and the settings of its run.

    The settings have the image size that the encoder was built for.
    """
    from relatum.recipes.reopen import run_config
    from relatum.trained import load

    path = _with_checkpoint(path)
    folder = path.parents[1] if path.is_file() else path
    if not (folder / "config.toml").is_file():
        raise CheckpointError(
            f"{folder} has no config.toml, which names the data; give a run directory of relatum train."
        )
    config = run_config(folder)
    tensors, values = _tensors(path)
    if "masked" not in values:
        return load(path).model, config
    name, size = values["masked"]["name"], values["masked"]["img_size"]
    if size != config.data.image_size:
        config = replace(config, data=replace(config.data, image_size=size, resize=0))
    return _pretrained(name, size, tensors, path), config


def _with_checkpoint(path: Path) -> Path:
    """Return `path`, or its folder `pretrain` where pretraining was the only stage."""
    if path.is_file():
        return path.resolve()  # the run directory is two folders up, also from within the folder of checkpoints
    from relatum.train.checkpoint import has_checkpoints

    inner = path / "pretrain"
    only_inner = has_checkpoints(inner / "checkpoints") and not has_checkpoints(path / "checkpoints")
    return inner if only_inner else path


def _tensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of the newest model, of its moving average if it had one, and the values beside them."""
    from relatum.train.checkpoint import latest_checkpoint, load_checkpoint

    if path.is_file():
        state = load_checkpoint(path)
    else:
        found, problems = latest_checkpoint(path / "checkpoints")
        if found is None:
            words = f"{path} is not a run directory with a usable checkpoint. {' '.join(problems)}"
            raise CheckpointError(words.rstrip())
        for problem in problems:
            warnings.warn(problem, stacklevel=2)
        state = found
    return state.part("ema") or state.part("model"), state.values


def _pretrained(name: str, size: int, tensors: dict[str, Any], path: Path) -> nn.Module:
    from relatum.models import create_model

    encoder: Any = create_model(name, 1, img_size=size)
    encoder.reset_classifier(0)
    own = {key.removeprefix(_ENCODER): value for key, value in tensors.items() if key.startswith(_ENCODER)}
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"the encoder in {path} does not fit the model '{name}': {error}") from error
    model: nn.Module = encoder.eval()
    return model


def _print(scores: dict[str, dict[str, dict[str, Any]]], splits: EncodedSplits, seconds: float) -> None:
    from relatum.report import comparison_table

    console = Console()
    rows = {f"{method} ({split})": entry for method, by in scores.items() for split, entry in by.items()}
    table = comparison_table(rows)
    table.columns[0].header = "method"
    console.print(table)
    images, width = splits.train[0].shape
    console.print(
        f"{images:,} training images, features of width {width}, {seconds:.1f} seconds", highlight=False, markup=False
    )
