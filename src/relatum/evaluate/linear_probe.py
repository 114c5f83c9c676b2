"""A linear probe: what a linear layer can read from features that stay as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from relatum.config import ObjectiveConfig, ranged
from relatum.config_files import check
from relatum.evaluate.knn import as_features, as_targets
from relatum.objectives import build_objective
from relatum.prior import ClassPrior

Objective = Literal["cross-entropy", "balanced-softmax"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LinearProbe:
    """How a linear probe is trained.

    Args:
        objective: cross-entropy, or balanced-softmax, which makes up for class frequencies.
        epochs: passes over the training features.
        lr: peak learning rate of Adam; it falls to 0 along half a cosine.
        penalty: lambda in loss + lambda / 2 x (sum of the squared weights, without the biases).
        batch_size: features per step.
        seed: of the first weights and of the order.
    """

    objective: Objective = "cross-entropy"
    epochs: int = ranged(100, 1)
    lr: float = ranged(0.03, 0.0)
    penalty: float = ranged(1e-4, 0.0)
    batch_size: int = ranged(256, 1)
    seed: int = ranged(0, 0, 2**32 - 1)


def linear_probe(
    train_features: Tensor,
    train_targets: Tensor,
    prior: ClassPrior,
    settings: LinearProbe | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """Train BatchNorm without parameters, then a linear layer, on features that stay as they are.

    The statistics of the BatchNorm are those of all training features, so the problem is logistic regression on
    standardised features, with one best answer. Same arguments, same bits; global random numbers are not touched.

    Args:
        train_features: (M, C).
        train_targets: class ids, (M,).
        prior: training counts; they name the number of classes, and balanced-softmax corrects by them.
        settings: default `LinearProbe()`.
        progress: called after each epoch with ("linear probe", epochs done, epochs).

    Returns:
        Features (N, C) -> logits (N, K), in evaluation mode, in the precision and on the device of the features.
    """
    settings = LinearProbe() if settings is None else settings
    check(settings, "linear probe")
    features = as_features(train_features, "training samples")
    targets = as_targets(train_targets, len(features), prior.num_classes).to(features.device)
    generator = Generator().manual_seed(settings.seed)
    norm, layer = _standardiser(features).eval(), _linear(features, prior.num_classes, generator)
    _fit(layer, norm(features), targets, prior, settings, generator, progress)
    return nn.Sequential(norm, layer).eval()


def _standardiser(features: Tensor) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(features.shape[1], eps=1e-6, affine=False).to(features)
    exact = features.double()
    layer.running_mean = exact.mean(0).to(features)
    layer.running_var = exact.var(0, correction=0).to(features)
    return layer


def _linear(features: Tensor, num_classes: int, generator: Generator) -> nn.Linear:
    # Made empty: nn.Linear would draw weights, of no use here, from the global generator.
    layer = nn.utils.skip_init(nn.Linear, features.shape[1], num_classes, dtype=features.dtype)
    nn.init.normal_(layer.weight, std=0.01, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer.to(features.device)


def _fit(
    layer: nn.Linear,
    features: Tensor,
    targets: Tensor,
    prior: ClassPrior,
    settings: LinearProbe,
    generator: Generator,
    progress: Progress | None,
) -> None:
    objective = build_objective(ObjectiveConfig(name=settings.objective), prior).to(features.device)
    # Adam adds the penalty to the gradient, so what it settles at is the minimum of the penalised loss.
    groups: list[dict[str, Any]] = [
        {"params": [layer.weight], "weight_decay": settings.penalty},
        {"params": [layer.bias]},
    ]
    optimizer = torch.optim.Adam(groups, lr=settings.lr)
    steps = settings.epochs * math.ceil(len(features) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(settings.epochs):
        order = torch.randperm(len(features), generator=generator).to(features.device)
        for rows in order.split(settings.batch_size):
            optimizer.zero_grad()
            objective(layer(features[rows]), targets[rows]).backward()
            optimizer.step()
            schedule.step()
        if progress is not None:
            progress("linear probe", epoch + 1, settings.epochs)
