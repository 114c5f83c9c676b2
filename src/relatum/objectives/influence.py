"""Influence-balanced loss: after a phase of cross-entropy, samples that pull the boundary hard count less."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from relatum.errors import ConfigError, suggest
from relatum.objectives import functional
from relatum.objectives.base import Objective
from relatum.objectives.checks import check_features, require, require_labels
from relatum.objectives.deferred import share_reached
from relatum.objectives.functional import at_least_float32, sample_weights, target_rows
from relatum.objectives.terms import inverse_frequency_weights
from relatum.prior import ClassPrior

GRADIENTS = ("constant", "released")
# Keeps the factor of a sample finite that has no influence left.
_SMALLEST_INFLUENCE = 1e-3


def influence_size(logits: Tensor, targets: Tensor, features: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return ||softmax(z) - y||_1 ||h||_1, (N,): the size of the gradient of the cross-entropy in the last layer.

    Args:
        logits: z, (N, K).
        targets: labels (N,) or soft targets (N, K), for which the gradient has the same form.
        features: h, what the classifier saw, (N, C).
        label_smoothing: eps in (1 - eps) y + eps / K.
    """
    z = at_least_float32(logits)
    errors = torch.softmax(z, dim=1) - target_rows(targets, z, label_smoothing)
    return errors.abs().sum(dim=1) * at_least_float32(features).abs().sum(dim=1).to(z.dtype)


class InfluenceBalanced(Objective):
    """Cross-entropy x alpha w_y / (influence + 0.001) from a share of the epochs on, plain cross-entropy before.

    w_k is proportional to 1 / n_k and sums to K; a soft target has the average of its classes' weights. The mean over
    the batch is a plain one. `alpha` undoes the size of the influence, which grows with the width and the norm of the
    features: choose it so that the loss keeps its magnitude at the switch. 1000 suits small CNNs; the normalised, wide
    features of a ViT need about ten times more.

    Args:
        prior: the class prior.
        alpha: factor of the loss once it is balanced.
        start: share of the epochs after which it is; the loop says so through `set_epoch`. 0 is from the beginning.
        gradient: "constant" takes the influence as a number, "released" differentiates it as well. The latter needs
            labels: the influence of a soft target vanishes at its best answer, where the loss does not.
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    corrects_prior = True
    own_weights = True
    needs_features = True
    balance: Tensor

    def __init__(
        self, prior: ClassPrior, alpha: float = 1000.0, start: float = 0.5, gradient: str = "constant", **options: Any
    ) -> None:
        super().__init__(prior, **options)
        require(0.0 < alpha < math.inf, f"alpha = {alpha} of influence-balanced must be positive, such as 1000.")
        require(0.0 <= start <= 1.0, f"start = {start} of influence-balanced must lie between 0 and 1 (never).")
        if gradient not in GRADIENTS:
            raise ConfigError(f"unknown gradient '{gradient}' of influence-balanced; {suggest(gradient, GRADIENTS)}")
        require(
            gradient == "constant" or self.label_smoothing == 0,
            "influence-balanced with the gradient of the influence drives smoothed answers away from their best value; "
            'set objective.label_smoothing=0, or influence="constant".',
        )
        self.alpha = alpha
        self.start = start
        self.gradient = gradient
        self.accepts_soft_targets = gradient == "constant"
        self.active = start == 0
        self._store_vector("balance", inverse_frequency_weights(prior))

    def set_epoch(self, epoch: float, epochs: int) -> None:
        """Balance from start x epochs on, counted from 0."""
        self.active = share_reached(self.start, epoch, epochs)

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss of each sample, (N,); features (N, C) are asked for from the first epoch on."""
        given = check_features(logits, features, "influence-balanced")
        if not self.accepts_soft_targets:
            require_labels(targets, "influence-balanced", "their influence vanishes where their loss does not.")
        loss = functional.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        return loss * self._factor(logits, targets, given) if self.active else loss

    def _factor(self, logits: Tensor, targets: Tensor, features: Tensor) -> Tensor:
        if self.gradient == "constant":
            logits, features = logits.detach(), features.detach()
        size = influence_size(logits, targets, features, label_smoothing=self.label_smoothing)
        weights = sample_weights(targets, self.balance.to(logits.device)).to(size.dtype)
        return self.alpha * weights / (size + _SMALLEST_INFLUENCE)

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        settings = f"alpha={self.alpha}, start={self.start}, gradient={self.gradient!r}"
        return f"{settings}, {super().extra_repr()}"
