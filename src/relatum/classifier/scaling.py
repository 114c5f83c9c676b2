"""Corrections that change a trained classifier by a number or two: τ-normalisation, logit adjustment, temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from relatum.classifier.base import ClassifierTool
from relatum.classifier.features import CachedFeatures, FeatureSet
from relatum.classifier.linear import linear_from, plain_copy
from relatum.errors import ConfigError, ModelError
from relatum.evaluate import adjust_logits, tau_normalised
from relatum.evaluate.metrics import balanced_accuracy, confusion_matrix, predict_classes

TAUS = tuple(step / 10 for step in range(21))
COLDEST, HOTTEST = 0.05, 20.0
_HALVINGS = 40


@dataclass(frozen=True)
class TauNorm(ClassifierTool):
    """Divide each row of the classifier by its norm to the power tau, and drop the bias (Kang et al., 2020).

    Args:
        tau: 0 leaves the rows, 1 gives all the same norm. None: that of 0, 0.1, …, 2 with the best balanced accuracy on
            the held-out features; of equal ones the smallest.
    """

    name: ClassVar[str] = "tau-norm"
    open_setting: ClassVar[str] = "tau"
    tau: float | None = None

    def __post_init__(self) -> None:
        if self.tau is not None and not 0 <= self.tau < math.inf:
            raise ConfigError(f"tau of tau-norm is {self.tau}; it must be a number of 0 or more, or None.")

    def tuned(self, features: CachedFeatures, head: nn.Module) -> TauNorm:
        """Choose tau, if it is open."""
        if self.tau is not None:
            return self
        old = plain_copy(head)
        norms = old.weight.norm(dim=1)
        norms = torch.where(norms > 0, norms, torch.ones_like(norms))  # a row of zeros stays one
        raw = features.held_out.features @ old.weight.T  # scaling a row scales its logits, so this serves for all
        return replace(self, tau=_best_tau(lambda tau: raw / norms**tau, features.held_out))

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return the normalised layer; its bias, if it has one, is 0."""
        tau = self.tuned(features, head).tau
        with tau_normalised(plain_copy(head), float(tau or 0.0)) as layer:
            return linear_from(layer.weight, layer.bias)  # type: ignore[arg-type]

    def describe(self) -> str:
        """Return words for the record."""
        return f"tau-normalised classifier (tau {_written(self.tau)})"


@dataclass(frozen=True)
class LogitAdjustment(ClassifierTool):
    """Take the training prior out of the bias: b - tau log prior (Menon et al., 2021).

    A test prior in the `ClassPrior` of the features that is not uniform is put in its place. For models whose training
    did not correct for the prior already.

    Args:
        tau: 1 is the Bayes correction of calibrated logits. None: chosen as for `TauNorm`.
    """

    name: ClassVar[str] = "logit-adjustment"
    open_setting: ClassVar[str] = "tau"
    tau: float | None = 1.0

    def __post_init__(self) -> None:
        if self.tau is not None and not math.isfinite(self.tau):
            raise ConfigError(f"tau of logit-adjustment is {self.tau}; it must be a finite number, or None.")

    def tuned(self, features: CachedFeatures, head: nn.Module) -> LogitAdjustment:
        """Choose tau, if it is open."""
        if self.tau is not None:
            return self
        raw = plain_copy(head)(features.held_out.features)
        return replace(self, tau=_best_tau(lambda tau: adjust_logits(raw, features.prior, tau), features.held_out))

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return the layer with its new bias."""
        old, tau = plain_copy(head), self.tuned(features, head).tau
        if old.bias is None:
            raise ModelError(
                "the classifier has no bias to put the logit adjustment into; take tau-norm or crt, or adjust the "
                "logits themselves: relatum evaluate --adjust-tau 1."
            )
        return linear_from(old.weight, adjust_logits(old.bias, features.prior, float(tau or 0.0)))

    def describe(self) -> str:
        """Return words for the record."""
        return f"logit adjustment in the bias (tau {_written(self.tau)})"


@dataclass(frozen=True)
class Temperature(ClassifierTool):
    """Divide the logits by a temperature, which changes confidences and no decision (Guo et al., 2017).

    Args:
        value: the temperature; above 1 lowers confidence. None: that from 0.05 to 20 with the smallest negative
            log-likelihood on the held-out features, all classes counting alike.
    """

    name: ClassVar[str] = "temperature"
    open_setting: ClassVar[str] = "value"
    value: float | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not 0 < self.value < math.inf:
            raise ConfigError(f"a temperature of {self.value} is none; it must be a positive number, or None.")

    def tuned(self, features: CachedFeatures, head: nn.Module) -> Temperature:
        """Choose the temperature, if it is open."""
        if self.value is not None:
            return self
        held = features.held_out
        return replace(self, value=best_temperature(plain_copy(head)(held.features), held.targets))

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return the layer with rows and biases divided by the temperature."""
        old, value = plain_copy(head), float(self.tuned(features, head).value or 1.0)
        return linear_from(old.weight / value, None if old.bias is None else old.bias / value)

    def describe(self) -> str:
        """Return words for the record."""
        return f"temperature scaling (temperature {_written(self.value)})"


def best_temperature(logits: Tensor, targets: Tensor) -> float:
    """Return the temperature between 0.05 and 20 with the smallest class-balanced negative log-likelihood.

    In 1 / T that is a convex function, so the sign of its slope says on which side of T the minimum lies.

    Args:
        logits: (N, K).
        targets: class ids, (N,); classes that do not occur have no say.
    """
    z = logits.double()
    counts = targets.bincount(minlength=z.shape[1])
    weights = 1 / counts[targets].double()
    own = z.gather(1, targets[:, None]).squeeze(1)
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        expected = ((z / math.exp(middle)).softmax(1) * z).sum(1)
        if float((weights * (expected - own)).sum()) > 0:  # the slope in 1 / T: it should be less, T more
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _best_tau(logits_at: Callable[[float], Tensor], held: FeatureSet, taus: Iterable[float] = TAUS) -> float:
    def accuracy(tau: float) -> float:
        logits = logits_at(tau)
        return balanced_accuracy(confusion_matrix(predict_classes(logits), held.targets, logits.shape[1]))

    return max(taus, key=accuracy)  # of equal ones max() takes the first


def _written(setting: float | None) -> str:
    return "to be chosen" if setting is None else f"{setting:.4g}"
