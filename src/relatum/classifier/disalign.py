"""DisAlign: align the scores of a trained classifier with a balanced distribution, image by image.

From "Distribution Alignment: A Unified Framework for Long-tail Visual Recognition" (Zhang et al., 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from relatum.classifier.features import CachedFeatures
from relatum.classifier.linear import plain_copy
from relatum.classifier.retrain import Fitting
from relatum.config import ranged
from relatum.data.samplers import InstanceSampler
from relatum.prior import ClassPrior


def align(logits: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return g (a z + b) + (1 - g) z, (N, K), for logits z (N, K), gate g (N, 1) in [0, 1], a and b (K,)."""
    return gate * (scale * logits + shift) + (1 - gate) * logits


class AlignedClassifier(nn.Module):
    """A trained linear classifier and its alignment; before it is fitted, the answers are those of the classifier.

    Args:
        classifier: stays as it is.
        generator: of the gate's first weights.
    """

    def __init__(self, classifier: nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        self.classifier = classifier.requires_grad_(False)
        self.gate = nn.utils.skip_init(nn.Linear, classifier.in_features, 1)
        bound = 1 / math.sqrt(classifier.in_features)  # as torch starts a linear layer
        with torch.no_grad():
            for parameter in self.gate.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        self.scale = nn.Parameter(torch.ones(classifier.out_features))
        self.shift = nn.Parameter(torch.zeros(classifier.out_features))

    def forward(self, features: Tensor) -> Tensor:
        """Return aligned logits (N, K) of features (N, C)."""
        return align(self.classifier(features), self.gate(features).sigmoid(), self.scale, self.shift)


@dataclass(frozen=True)
class DisAlign(Fitting):
    """Learn a scale and a shift per class and a gate per image, by re-weighted cross-entropy on all training features.

    The weight of class k is (1 / prior_k)^rho, normalised to sum to K; the loss of a batch is divided by the weights in
    it. The result is not a linear layer and cannot be folded into the model.

    Args:
        epochs: as of `Fitting`, like the five below.
        lr: learning rate at the start.
        batch_size: samples per step.
        weight_decay: none by default: it would pull the scales towards 0 instead of 1.
        momentum: of the descent.
        least_steps: see `Fitting`.
        rho: strength of the re-weighting; 0 is none. 1.2 is the paper's value for ImageNet-LT.
    """

    name: ClassVar[str] = "disalign"
    foldable: ClassVar[bool] = False
    lr: float = ranged(0.1, 0.0)
    batch_size: int = ranged(256, 1)
    weight_decay: float = ranged(0.0, 0.0)
    rho: float = ranged(1.2, 0.0)

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> AlignedClassifier:
        """Return the aligned classifier around a copy of `head`."""
        aligned = AlignedClassifier(plain_copy(head), torch.Generator().manual_seed(seed))
        weights = self.class_weights(features.prior)
        train = features.train
        sampler = InstanceSampler(train.targets.numpy(), features.prior.num_classes, seed=seed)
        fitted = [aligned.scale, aligned.shift, *aligned.gate.parameters()]
        self.minimise(lambda h, y: functional.cross_entropy(aligned(h), y, weight=weights), fitted, train, sampler)
        return aligned.requires_grad_(False).eval()

    def class_weights(self, prior: ClassPrior) -> Tensor:
        """Return the weight of each class, (K,) float32."""
        raw = torch.from_numpy(prior.train_prior) ** -self.rho
        return (raw * prior.num_classes / raw.sum()).float()

    def describe(self) -> str:
        """Return words for the record."""
        return f"scores aligned by DisAlign (rho {self.rho:g})"
