"""The objectives as modules; each is a pure function of `functional.py` with its per-class terms kept in buffers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from relatum.errors import ConfigError, suggest
from relatum.objectives import functional
from relatum.objectives.base import Objective
from relatum.objectives.checks import require
from relatum.objectives.terms import (
    effective_number_weights,
    ldam_margins,
    uniform_log_odds,
    vector_scaling_divisors,
)
from relatum.prior import ClassPrior

# bfloat16 has 8 bits of precision, so a cosine of 1 computed in it may come out a little larger.
_COSINE_SLACK = 0.02
BASES = ("softmax", "focal", "sigmoid", "sigmoid-focal")
ACTIVATIONS = ("softmax", "sigmoid")


class CrossEntropy(Objective):
    """-log softmax(z)_y."""

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.cross_entropy`."""
        return functional.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)


class LogitAdjusted(Objective):
    """Cross-entropy of z + tau log pi while training; predict with the raw logits z.

    Args:
        prior: the class prior.
        tau: strength; 1 is balanced softmax, 0 is cross-entropy.
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    log_prior: Tensor

    def __init__(self, prior: ClassPrior, tau: float = 1.0, **options: Any) -> None:
        super().__init__(prior, **options)
        require(math.isfinite(tau), f"tau = {tau} must be a finite number.")
        self.tau = tau
        self.corrects_prior = tau != 0
        self._store_vector("log_prior", prior.log_prior)

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.logit_adjusted`."""
        smoothing = self.label_smoothing
        return functional.logit_adjusted(logits, targets, self.log_prior, self.tau, label_smoothing=smoothing)

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"tau={self.tau}, {super().extra_repr()}"


class BalancedSoftmax(LogitAdjusted):
    """Cross-entropy of z + log pi while training: `LogitAdjusted` with tau = 1 by definition.

    Args:
        prior: the class prior.
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    def __init__(self, prior: ClassPrior, **options: Any) -> None:
        super().__init__(prior, 1.0, **options)


class VectorScaling(LogitAdjusted):
    """Cross-entropy of z_k / D_k + tau log pi_k with D_k = (n_max / n_k)^gamma.

    Args:
        prior: the class prior.
        gamma: exponent of the divisors; 0 is `LogitAdjusted`.
        tau: strength of the prior; 0 leaves the divisors alone (class-dependent temperatures).
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    divisors: Tensor

    def __init__(self, prior: ClassPrior, gamma: float = 0.3, tau: float = 1.0, **options: Any) -> None:
        super().__init__(prior, tau, **options)
        self._store_vector("divisors", vector_scaling_divisors(prior, gamma))
        self.gamma = gamma
        self.corrects_prior = tau != 0 or gamma != 0

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.vector_scaling`."""
        return functional.vector_scaling(
            logits, targets, self.divisors, self.log_prior, self.tau, label_smoothing=self.label_smoothing
        )

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"gamma={self.gamma}, {super().extra_repr()}"


class Focal(Objective):
    """(1 - p_y)^gamma times the cross-entropy; p never depends on class weights.

    On sigmoids every class is a question of its own, answered yes or no: the loss is the sum over the classes of
    -(1 - p_k)^gamma log p_k for the class meant and -p_k^gamma log(1 - p_k) for the others.

    Args:
        gamma: focusing power; 0 is (binary) cross-entropy.
        activation: "softmax" or "sigmoid".
        **options: `prior`, `label_smoothing` and `reduction` of `Objective`.
    """

    def __init__(self, gamma: float = 1.0, activation: str = "softmax", **options: Any) -> None:
        super().__init__(**options)
        require(0.0 <= gamma < math.inf, f"gamma = {gamma} of focal must be zero or positive, such as 1.")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation '{activation}' of focal; {suggest(activation, ACTIVATIONS)}")
        self.gamma = gamma
        self.activation = activation
        self.sigmoid_bias = 0.0 if activation == "sigmoid" else None

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.focal` and `functional.sigmoid_focal`."""
        loss = functional.sigmoid_focal if self.activation == "sigmoid" else functional.focal
        return loss(logits, targets, self.gamma, label_smoothing=self.label_smoothing)

    def matching_head_bias(self, num_classes: int | None = None) -> Tensor:
        """Return (K,): on sigmoids -log(K - 1), which gives each class the probability 1 / K; else zeros."""
        zeros = super().matching_head_bias(num_classes)
        return zeros + uniform_log_odds(len(zeros)) if self.activation == "sigmoid" else zeros

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        # The usual softmax is left out: runs of before there was a choice are then still recognised as the same.
        activation = "" if self.activation == "softmax" else f"activation={self.activation!r}, "
        return f"gamma={self.gamma}, {activation}{super().extra_repr()}"


class ClassBalanced(Focal):
    """Cross-entropy or focal loss, on the softmax or on sigmoids, weighted by the effective number of samples.

    The weight is that of the sample's class, on sigmoids too, where it weighs all K terms of a sample alike.

    Args:
        prior: the class prior.
        beta: effective-number parameter; 0 gives every class the weight 1.
        base: "softmax" (cross-entropy), "focal", "sigmoid" (binary cross-entropy) or "sigmoid-focal".
        gamma: focusing power of the bases "focal" and "sigmoid-focal".
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    own_weights = True

    def __init__(
        self, prior: ClassPrior, beta: float = 0.9999, base: str = "softmax", gamma: float = 1.0, **options: Any
    ) -> None:
        if base not in BASES:
            raise ConfigError(f"unknown base '{base}' of class-balanced; {suggest(base, BASES)}")
        super().__init__(gamma, "sigmoid" if base.startswith("sigmoid") else "softmax", prior=prior, **options)
        self.beta = beta
        self.base = base
        self.corrects_prior = beta > 0
        self._store_weights(effective_number_weights(prior, beta))

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.cross_entropy`, `binary_cross_entropy`, `focal` and `sigmoid_focal`."""
        if self.base == "softmax":
            return functional.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        if self.base == "sigmoid":
            return functional.binary_cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        return super().per_sample(logits, targets, features)

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"beta={self.beta}, base={self.base!r}, {super().extra_repr()}"


class LDAM(Objective):
    """Label-distribution-aware margins: cross-entropy of s (cos_k - m_y [k = y]), m_k proportional to n_k^(-1/4).

    The logits must be scaled cosines s cos in [-s, s], from a cosine classifier of the same scale s: the softmax of the
    deployed model is then the one that was trained. A soft target takes the expectation sum_k y_k l(k), where l(k) has
    the margin of class k on the logit of class k only.
    Margins do not make up for class frequencies by themselves: combine them with `DeferredReweighting`.

    Args:
        prior: the class prior.
        margin: margin of the rarest class.
        scale: s of the cosine classifier.
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    margins: Tensor

    def __init__(self, prior: ClassPrior, margin: float = 0.5, scale: float = 30.0, **options: Any) -> None:
        super().__init__(prior, **options)
        require(0.0 < scale < math.inf, f"scale = {scale} of ldam must be positive, such as 30.")
        self.margin = margin
        self.scale = scale
        self._store_vector("margins", ldam_margins(prior, margin))

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.ldam`."""
        _check_cosines(logits, self.scale)
        smoothing = self.label_smoothing
        return functional.ldam(logits, targets, self.margins, self.scale, label_smoothing=smoothing)

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"margin={self.margin}, scale={self.scale}, {super().extra_repr()}"


def _check_cosines(logits: Tensor, scale: float) -> None:
    if torch.compiler.is_compiling():  # reading values would break the graph
        return
    # NaN passes here on purpose: the training loop reports a loss that is not finite with all its context.
    largest = float(logits.detach().abs().amax()) / scale
    if largest > 1.0 + _COSINE_SLACK:
        raise ConfigError(
            f'ldam needs cosines times {scale:g}, but saw {largest * scale:.3g}; set model.head="cosine" and '
            f"model.scale={scale:g}, the same as objective.scale."
        )
