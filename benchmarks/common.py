"""Shared by the benchmarks: data, ratios with their spread, and results kept line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relatum import BatchFormer, attach, create_model  # before torch: it sets how threads wait
from relatum.bench.measure import ratios
from relatum.config import EvalConfig, RunConfig
from relatum.data import ArraySource
from relatum.data.loaders import Loaders, loaders_from_splits
from relatum.data.splits import open_splits
from relatum.objectives import BalancedSoftmax
from relatum.recipes.catalog import find_recipe
from relatum.train import ClassificationTask, Display
from relatum.train.loop import _Trainer

BATCH = 128


def cifar_config(recipe: str) -> RunConfig:
    """Settings of a CIFAR-100-LT recipe with the batch size of the benchmarks."""
    config = find_recipe(recipe).config()
    return replace(config, data=replace(config.data, batch_size=BATCH, root=os.environ.get("RELATUM_DATA", "")))


def cifar_loaders(config: RunConfig) -> tuple[Loaders, str]:
    """CIFAR-100-LT from RELATUM_DATA, or random images of the same number and size; and words for which."""
    if config.data.root and Path(config.data.root).is_dir():
        return loaders_from_splits(open_splits(config.data), config.data), "CIFAR-100-LT, imbalance 100"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10_847, 32, 32, 3), dtype=np.uint8)
    source = ArraySource(images, rng.integers(0, 100, 10_847), [str(k) for k in range(100)])
    return loaders_from_splits({"train": source}, config.data), "random images (RELATUM_DATA is not set)"


def trainer(loaders: Loaders, config: RunConfig, related: bool = False) -> _Trainer:
    """The product's own loop around ResNet-32, with or without BatchFormer."""
    model = create_model("resnet32-cifar", 100)
    relation = attach(model, BatchFormer()) if related else None
    task = ClassificationTask(model, BalancedSoftmax(loaders.prior), relation).train()
    return _Trainer(task, loaders, config.train, EvalConfig(), None, {}, Display(quiet=True))


def ratio(over: Sequence[float], under: Sequence[float]) -> str:
    """Median of the ratios of each round, with the smallest and largest."""
    found = ratios(over, under)
    return f"{found.median:.3f} (rounds {found.low:.3f} to {found.high:.3f}, n={found.rounds})"


def kept_results(path: str) -> list[dict[str, Any]]:
    """What an earlier run has written to `path`, one JSON object a line; a line cut short by a crash is left out."""
    if not path or not Path(path).exists():
        return []
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def keep_result(path: str, result: Mapping[str, Any]) -> None:
    """Append one result to `path`; an empty path keeps nothing."""
    if not path:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
