"""Features of a trained model, gathered once: everything else in this room works on them, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from relatum.classifier.linear import linear_classifier
from relatum.data.loaders import EvalLoader, Loaders
from relatum.data.source import ArraySource
from relatum.data.splits import stratified_holdout
from relatum.errors import DataError, ModelError
from relatum.evaluate import collect
from relatum.models.embedding import Embedding
from relatum.prior import ClassPrior

HOLDOUT = 0.2
_COMPARED = 8  # samples on which the classifier is held against the whole model


@dataclass(frozen=True)
class FeatureSet:
    """What a classifier sees of a split.

    Args:
        features: (N, C) float32.
        targets: class ids, (N,) int64.
    """

    features: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.targets.shape != self.features.shape[:1]:
            raise DataError(
                f"features of shape {tuple(self.features.shape)} with targets of shape {tuple(self.targets.shape)}; "
                "give (N, C) and one class id per row, (N,)."
            )
        if self.targets.is_floating_point():
            raise DataError(f"targets must be class ids, not {self.targets.dtype}; soft labels cannot be used here.")

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, indices: Tensor) -> FeatureSet:
        """Return the rows `indices` (n,)."""
        return FeatureSet(self.features[indices], self.targets[indices])


@dataclass(frozen=True)
class CachedFeatures:
    """Features of all splits, with their parts assigned.

    Args:
        train: the whole training split, on which classifiers are fitted.
        held: what settings are chosen on; never what is reported. May be empty (no class has two training images).
        held_from: "val", or "train" where `held` is a share of the training split. In that case the tools that fit use
            `train` as a whole: none of them chooses anything, and rare classes have no image to spare.
        reported: the splits that scores are given for.
        prior: class counts and names of the training split.
    """

    train: FeatureSet
    held: FeatureSet
    held_from: str
    reported: dict[str, FeatureSet]
    prior: ClassPrior

    @classmethod
    def from_splits(
        cls,
        splits: Mapping[str, FeatureSet],
        prior: ClassPrior | None = None,
        *,
        holdout: float = HOLDOUT,
        seed: int = 0,
    ) -> Self:
        """Assign the parts: "val" is held out where there are further splits to report; else a share of "train" is.

        Args:
            splits: "train" and at least one more.
            prior: default the counts of the training targets.
            holdout: share of each class of "train" to hold out, where "val" cannot serve.
            seed: of that draw.
        """
        if "train" not in splits:
            raise DataError(f"there is no split 'train' among {sorted(splits)}; name one of them so.")
        train = splits["train"]
        prior = ClassPrior.from_targets(train.targets.numpy()) if prior is None else prior
        for name, part in splits.items():
            if len(part) and not 0 <= int(part.targets.min()) <= int(part.targets.max()) < prior.num_classes:
                raise DataError(f"split '{name}' has class ids outside 0 to {prior.num_classes - 1}; correct them.")
        reported = {name: part for name, part in splits.items() if name != "train"}
        if "val" in reported and len(reported) > 1:
            held = reported.pop("val")
            return cls(train, held, "val", reported, prior)
        return cls(train, _share(train, prior, holdout, seed), "train", reported, prior)

    @property
    def held_out(self) -> FeatureSet:
        """`held`, or a `DataError` if it is empty."""
        if not len(self.held):
            raise DataError(
                "nothing can be held out to choose a setting on: no class has two training images; "
                "give the setting yourself, or a split 'val' beside the one that is reported."
            )
        return self.held


def cache_features(
    model: nn.Module,
    loaders: Loaders,
    *,
    holdout: float = HOLDOUT,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> CachedFeatures:
    """Gather the features of every split, each image once, without augmentation; the model stays as it is.

    Args:
        model: with one linear classifier; what enters it are the features.
        loaders: of the data that the model was trained on.
        holdout: see `CachedFeatures.from_splits`.
        seed: of the hold-out.
        device: where to compute; default where the model is.
        progress: called after each batch with the number of images in it.
    """
    train = train_in_order(loaders)
    _check_agreement(model, train, device)
    embedding = Embedding(model)
    splits = {
        name: FeatureSet(*collect(embedding, loader, device=device, progress=progress))
        for name, loader in {"train": train, **loaders.evals}.items()
    }
    return CachedFeatures.from_splits(splits, loaders.prior, holdout=holdout, seed=seed)


def train_in_order(loaders: Loaders) -> EvalLoader:
    """Return a loader of the training images in order, each once, as they would be evaluated."""
    train, preprocess = loaders.train, loaders.preprocess
    batch = max([loader.batch_size for loader in loaders.evals.values()], default=train.batch_size)
    images = train.images
    side = preprocess.image_size
    # What training holds in memory may be kept larger or smaller, or lack the margin that evaluation crops away.
    if images is not None and (tuple(images.shape[-2:]) != (side, side) or preprocess.resize != side):
        images = None
    return EvalLoader(train.source, preprocess, batch, workers=train.workers, images=images)


def _check_agreement(model: nn.Module, loader: EvalLoader, device: torch.device | str | None) -> None:
    """A model that does more after its classifier would not get what is fitted here."""
    _, head = linear_classifier(model)
    batch = next(iter(loader))
    few = [(batch.inputs[:_COMPARED], batch.targets[:_COMPARED])]
    expected, _ = collect(model, few, device=device)
    features, _ = collect(Embedding(model), few, device=device)
    with torch.inference_mode():
        found = head(features.to(head.weight)).float().cpu()
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-2, atol=1e-2):
        raise ModelError(
            f"{type(model).__name__} changes the output of its classifier, so a classifier fitted on its features "
            "would not act as measured; make the classifier its last layer."
        )


def _share(train: FeatureSet, prior: ClassPrior, holdout: float, seed: int) -> FeatureSet:
    # The hold-out of the data room works on image sources; single pixels stand for the images.
    pixels = np.zeros((len(train), 1, 1, 3), dtype=np.uint8)
    source = ArraySource(pixels, train.targets.numpy(), prior.names, "training features")
    _, held = stratified_holdout(source, holdout, seed)
    return train.subset(torch.from_numpy(held.positions))
