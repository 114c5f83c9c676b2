"""Classifiers fitted anew on class-balanced samples of frozen features: cRT and LWS.

Both come from "Decoupling Representation and Classifier" (Kang et al., 2020); the defaults are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from relatum.classifier.base import ClassifierTool
from relatum.classifier.features import CachedFeatures, FeatureSet
from relatum.classifier.linear import linear_from, plain_copy
from relatum.config import ranged
from relatum.config_files import check
from relatum.data.sampler_base import Sampler
from relatum.data.samplers import ClassBalancedSampler
from relatum.errors import TrainingError


@dataclass(frozen=True)
class Fitting(ClassifierTool):
    """Settings of stochastic gradient descent on features, with momentum and half a cosine down to 0.

    Args:
        epochs: passes of as many samples as the training split has.
        lr: learning rate at the start.
        batch_size: samples per step.
        weight_decay: of everything that is fitted.
        momentum: of the descent.
        least_steps: small data gets more epochs, until there are as many steps as this; 0 keeps `epochs`.
    """

    epochs: int = ranged(10, 1)
    lr: float = ranged(0.2, 0.0)
    batch_size: int = ranged(512, 1)
    weight_decay: float = ranged(5e-4, 0.0)
    momentum: float = ranged(0.9, 0.0, 1.0)
    least_steps: int = ranged(500, 0)

    def __post_init__(self) -> None:
        check(self, type(self).__name__)

    def minimise(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: Sequence[Tensor],
        data: FeatureSet,
        sampler: Sampler,
    ) -> None:
        """Change `parameters` in place so that `loss(features (B, C), targets (B,))` becomes small."""
        per_epoch = math.ceil(sampler.size / self.batch_size)
        epochs = max(self.epochs, math.ceil(self.least_steps / per_epoch))
        optimizer = torch.optim.SGD(parameters, self.lr, self.momentum, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
        for epoch in range(epochs):
            for index in torch.from_numpy(sampler.order(epoch)).split(self.batch_size):
                optimizer.zero_grad()
                loss(data.features[index], data.targets[index]).backward()
                optimizer.step()
                schedule.step()
        if not all(bool(p.isfinite().all()) for p in parameters):
            raise TrainingError(f"{self.name} became infinite on these features; lower its lr, which is {self.lr:g}.")


@dataclass(frozen=True)
class CRT(Fitting):
    """Classifier re-training: a new linear layer from random weights, cross-entropy, all classes equally often.

    The samples of a class are dealt out in random order to the end before they come again. Arguments as of `Fitting`.
    """

    name: ClassVar[str] = "crt"

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return the new linear layer; it has a bias if `head` has one."""
        old = plain_copy(head)
        bound = 1 / math.sqrt(old.in_features)  # as torch starts a linear layer
        random = torch.Generator().manual_seed(seed)
        weight = torch.empty_like(old.weight).uniform_(-bound, bound, generator=random).requires_grad_()
        bias = None if old.bias is None else torch.empty_like(old.bias).uniform_(-bound, bound, generator=random)
        parameters = [weight] if bias is None else [weight, bias.requires_grad_()]

        def loss(h: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional.linear(h, weight, bias), y)

        self.minimise(loss, parameters, features.train, balanced_order(features, seed))
        return linear_from(weight, bias)

    def describe(self) -> str:
        """Return words for the record."""
        return "classifier re-trained on class-balanced samples (cRT)"


@dataclass(frozen=True)
class LWS(Fitting):
    """Learnable weight scaling: s_k (W_k h + b_k) with one factor per class, from 1 on; fitted as cRT is.

    Arguments as of `Fitting`.
    """

    name: ClassVar[str] = "lws"
    epochs: int = ranged(5, 1)

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return a linear layer whose rows and biases are those of `head`, scaled."""
        old = plain_copy(head)
        with torch.no_grad():
            logits = FeatureSet(old(features.train.features), features.train.targets)
        scale = torch.ones(old.out_features, requires_grad=True)
        sampler = balanced_order(features, seed)
        self.minimise(lambda z, y: functional.cross_entropy(scale * z, y), [scale], logits, sampler)
        factor = scale.detach()
        return linear_from(factor[:, None] * old.weight, None if old.bias is None else factor * old.bias)

    def describe(self) -> str:
        """Return words for the record."""
        return "classifier rows re-scaled on class-balanced samples (LWS)"


def balanced_order(features: CachedFeatures, seed: int) -> ClassBalancedSampler:
    """Return the class-balanced sampler of the training features."""
    return ClassBalancedSampler(features.train.targets.numpy(), features.prior.num_classes, seed=seed)
