"""Corrections for the long tail after training: logit adjustment and τ-normalisation of the classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from relatum.errors import ConfigError, DataError, ModelError
from relatum.models.find import find_classifier
from relatum.prior import ClassPrior


def adjust_logits(logits: Tensor, prior: ClassPrior, tau: float = 1.0) -> Tensor:
    """Return logits from which the training prior is taken out: z - tau log(train prior) [+ tau log(test prior)].

    The test prior enters only when it is not uniform; a uniform one would shift all classes alike.

    Args:
        logits: of a model trained without a prior-aware objective (otherwise the prior is corrected twice), (N, K).
        prior: training counts and, if given there, the class frequencies expected at test.
        tau: strength; 0 changes nothing, 1 is the Bayes correction of calibrated logits.
    """
    if not math.isfinite(tau):
        raise ConfigError(f"the strength tau of logit adjustment must be a finite number, not {tau}.")
    if logits.shape[-1] != prior.num_classes:
        raise DataError(
            f"logits of {logits.shape[-1]} classes cannot be adjusted by counts of {prior.num_classes}; "
            "give the ClassPrior of the model's training data."
        )
    shift = -tau * prior.log_prior
    if (prior.test_prior != prior.test_prior[0]).any():
        shift = shift + tau * np.log(prior.test_prior)
    z = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return z + torch.as_tensor(shift, dtype=z.dtype, device=z.device)


@contextmanager
def tau_normalised(model: nn.Module, tau: float) -> Iterator[nn.Module]:
    """Within the block, each classifier row is W_k / ||W_k||^tau and there is no bias; afterwards all is as before.

    The classifier is what `model.get_classifier()` names (all heads of a distilled model), else the last linear layer.
    Its own storage is kept aside meanwhile, so what comes back is the same memory, bit for bit, also after an
    exception. A row of zeros stays zero. Do not train inside the block.

    Args:
        model: changed in place for the duration of the block; also what the block receives.
        tau: 0 leaves the rows as they are (and drops the bias), 1 gives all rows norm 1.
    """
    if not math.isfinite(tau) or tau < 0:
        raise ConfigError(f"the power tau of τ-normalisation must be a number of zero or more, not {tau}.")
    # Heads may share a parameter: each is changed once, and remembered before any is changed.
    kept: dict[Tensor, Tensor] = {}
    changed: dict[Tensor, Tensor] = {}
    for layer in _classifiers(model):
        kept[layer.weight], changed[layer.weight] = layer.weight.data, _normalised_rows(layer.weight.data, tau)
        if layer.bias is not None:
            kept[layer.bias], changed[layer.bias] = layer.bias.data, torch.zeros_like(layer.bias.data)
    try:
        for parameter, value in changed.items():
            parameter.data = value
        yield model
    finally:
        for parameter, value in kept.items():
            parameter.data = value


def _normalised_rows(weight: Tensor, tau: float) -> Tensor:
    norm = weight.norm(dim=1, keepdim=True)
    return weight / torch.where(norm > 0, norm, torch.ones_like(norm)).pow(tau)


def _classifiers(model: nn.Module) -> list[nn.Linear]:
    layers = [layer for _, layer in find_classifier(model)]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(linear) < len(layers):
        kinds = " and ".join(type(layer).__name__ for layer in layers)
        raise ModelError(
            f"τ-normalisation needs an nn.Linear as classifier, but {type(model).__name__} has {kinds}; "
            "evaluate with tau_norm 0, or let the model's get_classifier() return its last linear layer."
        )
    return linear
