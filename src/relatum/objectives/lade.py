"""LADE: balanced softmax, and a term that asks the logits to be log density ratios, free of the training prior."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from relatum.errors import ConfigError, suggest
from relatum.objectives.checks import require, require_labels
from relatum.objectives.functional import at_least_float32
from relatum.objectives.losses import BalancedSoftmax
from relatum.prior import ClassPrior

IMPORTANCE = ("sample", "released")


def lade_regulariser(
    logits: Tensor, labels: Tensor, log_prior: Tensor, penalty: float = 0.01, importance: str = "sample"
) -> Tensor:
    """Return sum_c pi_c (-mean of z_c over the samples of c + S_c + penalty S_c^2), a scalar.

    It is the regularised Donsker-Varadhan bound, with the sign turned, of the divergence between the samples of class c
    and a world in which all classes are equally frequent. S_c = log mean_i w_i exp(z_ic), with the importance weight
    w_i = 1 / (K pi) of the class of sample i, estimates the normaliser of that world. A class that is absent from the
    batch has no mean and contributes its S_c only.

    Args:
        logits: z, (N, K).
        labels: (N,).
        log_prior: log pi, (K,).
        penalty: weight of S_c^2, which keeps S_c near zero.
        importance: "sample" weighs by the class of the sample i. "released" weighs by the class c of the logit.
    """
    z = at_least_float32(logits)
    log_pi = log_prior.to(z)
    rows, classes = z.shape
    own = F.one_hot(labels.long(), classes).to(z.dtype)
    mean_of_own = (own * z).sum(dim=0) / own.sum(dim=0).clamp(min=1.0)
    log_weight = -log_pi - math.log(classes)
    weighted = z + (log_weight if importance == "released" else log_weight[labels.long()].unsqueeze(1))
    normaliser = weighted.logsumexp(dim=0) - math.log(rows)
    return (log_pi.exp() * (normaliser + penalty * normaliser.square() - mean_of_own)).sum()


class LADE(BalancedSoftmax):
    """Balanced softmax + alpha x `lade_regulariser`; predict with the raw logits z.

    The regulariser is a statement about a whole batch, so there is no loss of a single sample: the reduction is the
    mean. Class weights and label smoothing act on the cross-entropy part. Small batches estimate it poorly.

    Args:
        prior: the class prior.
        alpha: weight of the regulariser; 0 is `BalancedSoftmax`.
        penalty: weight of the squared normalisers.
        importance: "sample" (importance weights of the sample's class) or "released" (of the logit's class).
        **options: `label_smoothing` of `Objective`.
    """

    accepts_soft_targets = False

    def __init__(
        self,
        prior: ClassPrior,
        alpha: float = 0.1,
        penalty: float = 0.01,
        importance: str = "sample",
        **options: Any,
    ) -> None:
        super().__init__(prior, **options)
        require(0.0 <= alpha < math.inf, f"alpha = {alpha} of lade must be zero or positive, such as 0.1.")
        require(0.0 <= penalty < math.inf, f"penalty = {penalty} of lade must be zero or positive, such as 0.01.")
        require(
            self.reduction == "mean",
            f"lade compares the samples of a batch and has no loss per sample; reduction must be 'mean', not "
            f"'{self.reduction}'.",
        )
        if importance not in IMPORTANCE:
            raise ConfigError(f"unknown importance '{importance}' of lade; {suggest(importance, IMPORTANCE)}")
        self.alpha = alpha
        self.penalty = penalty
        self.importance = importance

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the loss of logits (N, K) and labels (N,), a scalar."""
        require_labels(targets, "lade", "it estimates how the images of each class differ, and a mix is of none.")
        balanced = super().forward(logits, targets, features)
        return balanced + self.alpha * lade_regulariser(logits, targets, self.log_prior, self.penalty, self.importance)

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        settings = f"alpha={self.alpha}, penalty={self.penalty}, importance={self.importance!r}"
        return f"{settings}, {super().extra_repr()}"
