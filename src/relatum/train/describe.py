"""What the manifest of a run says about it from the start."""

from __future__ import annotations

from typing import Any

import torch

from relatum.config import TrainConfig
from relatum.data.loaders import Loaders
from relatum.processes import world
from relatum.train.task import Task


def facts(task: Task, loaders: Loaders, config: TrainConfig, device: torch.device, precision: str) -> dict[str, Any]:
    """Return what is trained on what, and where, as JSON values."""
    return {
        "seed": config.seed,
        "class_names": list(loaders.prior.names),
        "class_counts": loaders.prior.counts.tolist(),
        "processes": world(),
        "relation_batch": loaders.train.batch_size * task.related_processes or None,
        "parameters": task.deployed_parameters,
        "selection": "last epoch",
        "peak_lr": config.lr,
        "device": str(device),
        "precision": precision,
    }
