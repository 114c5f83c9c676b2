"""Judge a frozen encoder: gather its features, then let nearest neighbours and a linear layer classify by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relatum.config_files import check
from relatum.data.loaders import EvalLoader, Loaders
from relatum.errors import ConfigError, DataError, suggest
from relatum.evaluate.evaluate import collect
from relatum.evaluate.knn import check_votes, knn_logits
from relatum.evaluate.linear_probe import LinearProbe, Progress, linear_probe
from relatum.evaluate.scores import Scores, score
from relatum.models.embedding import Embedding
from relatum.prior import ClassPrior

METHODS = ("k-nn", "linear")


class EncodedSplits(NamedTuple):
    """Features (N, C) and targets (N,) of the training split, and of each evaluation split."""

    train: tuple[Tensor, Tensor]
    evals: dict[str, tuple[Tensor, Tensor]]


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
