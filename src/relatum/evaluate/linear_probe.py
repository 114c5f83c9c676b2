"""Probes of a frozen encoder: a linear layer on its features, and k nearest neighbours beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from relatum.config import ObjectiveConfig, ranged
from relatum.config_files import check
from relatum.data.loaders import EvalLoader, Loaders
from relatum.errors import ConfigError, DataError, ModelError, suggest
from relatum.evaluate.evaluate import collect
from relatum.evaluate.knn import as_features, as_targets, check_votes, knn_logits
from relatum.evaluate.scores import Scores, score
from relatum.models.embedding import Embedding
from relatum.objectives import build_objective
from relatum.prior import ClassPrior

METHODS = ("k-nn", "linear")
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


class EncodedSplits(NamedTuple):
    """Features (N, C) and targets (N,) of the training split, and of each evaluation split."""

    train: tuple[Tensor, Tensor]
    evals: dict[str, tuple[Tensor, Tensor]]


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


def encode_splits(
    encoder: nn.Module,
    loaders: Loaders,
    *,
    pool: str = "default",
    device: torch.device | str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
) -> EncodedSplits:
    """Gather the features of the training split, seen without augmentation, and of the evaluation splits.

    Args:
        encoder: a classifier (its features are what enters the classifier) or a timm encoder without one.
        loaders: the data; every image of the training split is taken once, whatever the sampler.
        pool: what stands for an image: see `relatum.models.embedding.Embedding`.
        device: where to compute; default where the encoder is.
        precision: "float32", or "bfloat16" for autocast.
        progress: called with ("features", images done, images in all).
    """
    if not loaders.evals:
        raise DataError("there is no evaluation split to score on; set data.val_fraction, or add a val or test split.")
    _check_pool(encoder, pool)
    embedding, train = Embedding(encoder, pool), _train_loader(loaders)
    total, done = sum(len(loader.indices) for loader in (train, *loaders.evals.values())), 0

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress("features", done, total)

    found = {
        split: collect(embedding, loader, device=device, precision=precision, progress=count)
        for split, loader in {"train": train, **loaders.evals}.items()
    }
    return EncodedSplits(found.pop("train"), found)


def _train_loader(loaders: Loaders) -> EvalLoader:
    train, preprocess, images = loaders.train, loaders.preprocess, loaders.train.images
    # What training keeps in memory is what evaluation would decode, if neither side cuts a margin off.
    same = images is not None and images.shape[-1] == preprocess.image_size == preprocess.resize
    batch_size = next(iter(loaders.evals.values())).batch_size
    # Images that fit into memory are small: to hand them to other processes costs more than to prepare them here.
    workers = 0 if images is not None else train.workers
    return EvalLoader(train.source, preprocess, batch_size, workers=workers, images=images if same else None)


def probe_features(
    splits: EncodedSplits,
    prior: ClassPrior,
    *,
    methods: Sequence[str] = METHODS,
    k: int = 20,
    temperature: float = 0.07,
    balanced: bool = False,
    settings: LinearProbe | None = None,
    rule: str = "standard",
    bootstrap: int = 1000,
    progress: Progress | None = None,
) -> dict[str, dict[str, Scores]]:
    """Classify the evaluation splits by their features and score the answers.

    Args:
        splits: from `encode_splits`.
        prior: counts of the training split; its shot groups are those of the scores.
        methods: any of "k-nn" and "linear".
        k: neighbours that vote in "k-nn".
        temperature: of those votes.
        balanced: divide the votes for each class by its share of the training images.
        settings: how "linear" is trained; default `LinearProbe()`.
        rule: shot rule.
        bootstrap: resamples for the interval of top-1; 0 leaves it out.
        progress: called with ("linear probe", epochs done, epochs).

    Returns:
        Scores by method and split.
    """
    check_probe(methods, k, len(splits.train[0]), temperature=temperature, settings=settings)
    scores: dict[str, dict[str, Scores]] = {}
    for method in methods:
        probe = linear_probe(*splits.train, prior, settings, progress) if method == "linear" else None
        words = "none" if probe is not None or not balanced else "votes divided by class frequency"
        scores[method] = {}
        for split, (features, targets) in splits.evals.items():
            if probe is None:
                logits = knn_logits(*splits.train, features, prior.num_classes, k, temperature, balanced=balanced)
            else:
                logits = probe(features).detach()
            scores[method][split] = score(
                logits, targets, prior, split=split, rule=rule, bootstrap=bootstrap, adjustment=words
            )
    return scores


def probe_encoder(
    encoder: nn.Module,
    loaders: Loaders,
    *,
    methods: Sequence[str] = METHODS,
    k: int = 20,
    temperature: float = 0.07,
    balanced: bool = False,
    pool: str = "default",
    settings: LinearProbe | None = None,
    rule: str = "standard",
    bootstrap: int = 1000,
    device: torch.device | str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
) -> dict[str, dict[str, Scores]]:
    """Judge a frozen encoder: `encode_splits`, then `probe_features`, whose arguments and answer these are.

    What can be checked without the images is checked before the first of them is read.
    """
    check_probe(methods, k, len(loaders.train.source), temperature=temperature, settings=settings)
    loaders.prior.shot_groups(rule)  # an unknown rule is an error here
    splits = encode_splits(encoder, loaders, pool=pool, device=device, precision=precision, progress=progress)
    return probe_features(
        splits,
        loaders.prior,
        methods=methods,
        k=k,
        temperature=temperature,
        balanced=balanced,
        settings=settings,
        rule=rule,
        bootstrap=bootstrap,
        progress=progress,
    )


def check_probe(
    methods: Sequence[str], k: int, samples: int, *, temperature: float = 0.07, settings: LinearProbe | None = None
) -> None:
    """Raise a ConfigError for what would otherwise fail only when the features of all `samples` are there."""
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"unknown probe '{method}'; {suggest(method, METHODS)}")
    if not methods:
        raise ConfigError(f"no probe was named; choose any of {', '.join(METHODS)}.")
    if "k-nn" in methods:
        check_votes(k, temperature, samples)
    check(LinearProbe() if settings is None else settings, "linear probe")


def _check_pool(encoder: nn.Module, pool: str) -> None:
    # Embedding asks for tokens only; a convolutional network has none, and not every ViT has a class token.
    tokens = getattr(encoder, "num_prefix_tokens", None)
    if pool in ("avg", "token") and tokens is None:
        raise ModelError(f"{type(encoder).__name__} has no tokens to pool; use pool default.")
    if pool == "token" and not tokens:
        raise ModelError(f"{type(encoder).__name__} has no class token; use pool avg or default.")
