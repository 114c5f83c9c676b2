"""k nearest neighbours: what features say about classes without any training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate._arrays import as_labels

# Similarities closer than this are equal: float32 cannot tell them apart, and what it tells depends on the batch.
TIE = 1e-6
# Added to every share of the votes, so that a class without a vote has a finite logit, -18.4.
FLOOR = 1e-8
# Entries of the table of similarities that are computed at a time: 64 MB in float32.
TABLE = 2**24


@torch.no_grad()
def knn_logits(
    train_features: Tensor,
    train_targets: Tensor,
    features: Tensor,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.07,
    *,
    balanced: bool = False,
    chunk: int = 0,
) -> Tensor:
    """Let the `k` most similar training samples vote on the class of each sample.

    Similarity s is the cosine, a vote weighs exp(s / temperature). Training samples that are equally similar (within
    1e-6) share the last of the k places, so the answer does not depend on the order of the training samples.

    Args:
        train_features: (M, C).
        train_targets: class ids, (M,).
        features: of the samples to classify, (N, C).
        num_classes: K.
        k: neighbours that vote, 1 to M.
        temperature: the smaller, the more the nearest neighbours decide.
        balanced: divide the votes for each class by its share of the training samples, for a long tail.
        chunk: samples compared at a time; 0 takes as many as need 64 MB. The answer does not depend on it.

    Returns:
        (N, K) logarithm of the share of the votes, on the device of `features`: their softmax is the shares, and
        `relatum.evaluate.score` takes them as logits.

    Raises:
        ConfigError: k, temperature, chunk or num_classes out of range.
        DataError: no samples, or targets that do not fit.
        ModelError: features that are no table of finite numbers, or of different widths.
    """
    if num_classes < 1 or chunk < 0:
        raise ConfigError(
            f"num_classes is {num_classes} and chunk {chunk}; at least one class, and a chunk of 0 or more."
        )
    queries = as_features(features, "samples to classify")
    train = as_features(train_features, "training samples").to(queries)
    if train.shape[1] != queries.shape[1]:
        raise ModelError(
            f"training features have width {train.shape[1]}, the others {queries.shape[1]}; "
            "take both from the same encoder."
        )
    targets = as_targets(train_targets, len(train), num_classes).to(queries.device)
    check_votes(k, temperature, len(train))
    train, queries = functional.normalize(train), functional.normalize(queries)
    rows = chunk or max(1, TABLE // len(train))
    votes = torch.cat([_votes(part @ train.T, targets, num_classes, k, temperature) for part in queries.split(rows)])
    if balanced:
        votes = votes / torch.bincount(targets, minlength=num_classes).clamp(min=1)
    return (votes / votes.sum(1, keepdim=True) + FLOOR).log()


def as_features(values: Tensor, what: str) -> Tensor:
    """Return features (N, C) in float32 or float64; an error where they are empty, not a table, or not finite."""
    if values.ndim != 2 or values.shape[1] == 0:
        raise ModelError(f"features of the {what} must be (samples, width), not {tuple(values.shape)}.")
    if len(values) == 0:
        raise DataError(f"there are no {what}; check that the split is not empty.")
    features = values.detach()
    features = features if features.dtype == torch.float64 else features.float()
    if not bool(torch.isfinite(features).all()):
        raise ModelError(
            f"features of the {what} are not finite; the encoder has diverged: take an earlier checkpoint."
        )
    return features


def as_targets(values: Tensor, samples: int, num_classes: int) -> Tensor:
    """Return class ids (N,) as int64; an error where they are soft, out of range, or not one for each sample."""
    targets = torch.from_numpy(as_labels(values, num_classes))
    if len(targets) != samples:
        raise DataError(f"{len(targets)} targets for {samples} training samples; give one class id for each.")
    return targets


def _votes(similarity: Tensor, targets: Tensor, num_classes: int, k: int, temperature: float) -> Tensor:
    """Sum the votes (n, K) of the `k` best columns of `similarity` (n, M), sharing places where columns are equal."""
    best, places = similarity.topk(min(k + 1, similarity.shape[1]))
    last = best[:, k - 1 : k]
    # Relative to the nearest neighbour, whose vote is 1: nothing can overflow, and shares stay the same.
    weights = ((best[:, :k] - best[:, :1]) / temperature).exp()
    votes = similarity.new_zeros(len(similarity), num_classes)
    votes.scatter_add_(1, targets[places[:, :k]], weights)
    tied = (best[:, k:] >= last - TIE).any(1)  # False throughout if all training samples vote
    if bool(tied.any()):
        shared = _share_places(similarity[tied], last[tied], k)
        weights = ((similarity[tied] - best[tied, :1]) / temperature).exp() * shared
        votes[tied] = votes.new_zeros(len(weights), num_classes).index_add_(1, targets, weights)
    return votes


def _share_places(similarity: Tensor, last: Tensor, k: int) -> Tensor:
    """Return how much of a place each column has, (n, M): 1 if better than the k-th, an equal part if like it."""
    better = similarity > last + TIE
    equal = (similarity >= last - TIE) & ~better
    left = k - better.sum(1, keepdim=True)
    return better + equal * (left / equal.sum(1, keepdim=True))


def check_votes(k: int, temperature: float, samples: int) -> None:
    """Raise a ConfigError where `k` of `samples` training samples cannot vote with that temperature."""
    if k < 1:
        raise ConfigError(f"k is {k}; at least one neighbour must vote.")
    if k > samples:
        raise ConfigError(f"k is {k}, but there are only {samples} training samples; lower k.")
    if not 0 < temperature < float("inf"):
        raise ConfigError(f"the temperature of the votes is {temperature}; it must be above 0, for example 0.07.")
