"""Experts: parts of one model that see the same image, answer each for itself while training, and together afterwards.

An error that only one of them makes is outvoted. For that they must be different, so each has its own loss; a single
loss on their common answer would train one wide network.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ExpertLinear(nn.Linear):
    """A linear classifier over the features of E experts side by side.

    While training, each expert answers from its own features alone. Otherwise this is an ordinary linear layer, so that
    the trained model is exported, folded and adjusted as any other; its logits are the mean over the experts, which is
    their geometric mean as probabilities.

    Args:
        in_features: C, the width of all experts together.
        out_features: K, the number of classes.
        experts: E.
    """

    def __init__(self, in_features: int, out_features: int, experts: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.experts = experts
        with torch.no_grad():
            self.weight.mul_(math.sqrt(experts))  # torch starts a layer by its number of inputs: those of one expert

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of features (N, C): (N, E, K) while training, (N, K) otherwise, the mean of the former."""
        if not self.training:
            return super().forward(features)
        apart = features.unflatten(-1, (self.experts, -1))
        weight = self.weight.unflatten(-1, (self.experts, -1))
        return self.experts * torch.einsum("nec,kec->nek", apart, weight)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"{super().extra_repr()}, experts={self.experts}"


def vote(logits: Tensor) -> Tensor:
    """Return the common logits (N, K) of experts (N, E, K); logits (N, K) of a model without any stay as they are."""
    return logits.mean(1) if logits.ndim == 3 else logits


def one_by_one(logits: Tensor, *of_samples: Tensor | None) -> tuple[Tensor | None, ...]:
    """Make a sample of every answer, so that a loss over samples is the mean of the losses of the experts.

    Args:
        logits: (N, E, K) of experts; (N, K) stays as it is, with all the rest.
        *of_samples: what there is one of for each sample, (N, ...): targets, features, or None.

    Returns:
        The logits (N E, K), and of everything else each row E times, (N E, ...).
    """
    if logits.ndim != 3:
        return (logits, *of_samples)
    repeated = (None if value is None else value.repeat_interleave(logits.shape[1], 0) for value in of_samples)
    return (logits.flatten(0, 1), *repeated)
