"""What the losses take from a class prior: one number per class, computed in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relatum.errors import ConfigError, suggest
from relatum.objectives.checks import require
from relatum.prior import ClassPrior

Vector = npt.NDArray[np.float64]
SHIFTS = ("none", "log(C-1)")


def effective_number_weights(prior: ClassPrior, beta: float = 0.9999) -> Vector:
    """Return class weights proportional to (1 - beta) / (1 - beta^n_k), normalised to sum K, (K,).

    beta = 0 gives ones; beta towards 1 gives inverse frequencies. A class without samples counts as one sample.
    """
    require(0.0 <= beta < 1.0, f"beta = {beta} of the effective number must be at least 0 and below 1, such as 0.9999.")
    if beta == 0.0:
        return np.ones(prior.num_classes)
    # 1 - beta^n, without the cancellation of small n and beta close to one.
    weights = (1.0 - beta) / -np.expm1(prior.safe_counts * np.log(beta))
    return np.asarray(weights * (prior.num_classes / weights.sum()), dtype=np.float64)


def ldam_margins(prior: ClassPrior, margin: float = 0.5) -> Vector:
    """Return margins proportional to n_k^(-1/4), the rarest class having `margin`, (K,)."""
    require(0.0 <= margin < np.inf, f"margin = {margin} of ldam must be zero or positive, such as 0.5.")
    roots = prior.safe_counts**-0.25
    return np.asarray(margin * roots / roots.max(), dtype=np.float64)


def vector_scaling_divisors(prior: ClassPrior, gamma: float = 0.3) -> Vector:
    """Return D_k = (n_max / n_k)^gamma, (K,): one for the largest class, more for rarer ones."""
    require(0.0 <= gamma < np.inf, f"gamma = {gamma} of vector-scaling must be zero or positive, such as 0.3.")
    counts = prior.safe_counts
    return np.asarray((counts.max() / counts) ** gamma, dtype=np.float64)


def inverse_frequency_weights(prior: ClassPrior) -> Vector:
    """Return class weights proportional to 1 / n_k, normalised to sum K, (K,)."""
    weights = 1.0 / prior.safe_counts
    return np.asarray(weights * (prior.num_classes / weights.sum()), dtype=np.float64)


def uniform_log_odds(num_classes: int) -> float:
    """Return the log-odds of one among K equally likely classes: -log(K - 1)."""
    require(num_classes > 1, "a single class has no odds; the loss needs at least two classes.")
    return -float(np.log(num_classes - 1))


def log_odds(frequencies: npt.NDArray[np.float64], label_smoothing: float = 0.0) -> Vector:
    """Return log p_k - log(1 - p_k), (K,), for the class shares p of the targets.

    1 - p is summed from the other classes and not subtracted from one: it keeps its digits where p is close to one.

    Args:
        frequencies: positive numbers in proportion to the class shares pi, (K,).
        label_smoothing: eps of smoothed targets, whose shares are p = (1 - eps) pi + eps / K.
    """
    values = np.asarray(frequencies, dtype=np.float64)
    k = len(values)
    uniform_log_odds(k)  # refuses a single class
    before = np.concatenate([[0.0], np.cumsum(values[:-1])])
    after = np.concatenate([np.cumsum(values[:0:-1])[::-1], [0.0]])
    share, rest = values / values.sum(), (before + after) / values.sum()
    keep = 1.0 - label_smoothing
    odds = np.log(keep * share + label_smoothing / k) - np.log(keep * rest + label_smoothing * (k - 1) / k)
    return np.asarray(odds, dtype=np.float64)


def balanced_bce_bias(prior: ClassPrior, tau: float = 1.0, shift: str = "none", label_smoothing: float = 0.0) -> Vector:
    """Return what `BalancedBCE` adds to the logits while training, (K,).

    Uniform test prior (the default of `ClassPrior`): tau log(pi / (1 - pi)), plus log(K - 1) as it stands where `shift`
    asks for it. Any other test prior: tau (log-odds of the training prior - log-odds of the test prior).

    Args:
        prior: the class prior.
        tau: strength.
        shift: "none" or "log(C-1)", C being the number of classes.
        label_smoothing: eps; both priors are then those of smoothed targets.
    """
    require(bool(np.isfinite(tau)), f"tau = {tau} must be a finite number.")
    if shift not in SHIFTS:
        raise ConfigError(f"unknown shift '{shift}' of balanced-bce; {suggest(shift, SHIFTS)}")
    source = log_odds(prior.safe_counts, label_smoothing)
    if has_uniform_test_prior(prior):
        return tau * source - (uniform_log_odds(prior.num_classes) if shift != "none" else 0.0)
    require(
        shift == "none",
        'shift="log(C-1)" stands for a uniform test prior, but this class prior has another one, whose log-odds are '
        'subtracted already; use shift="none".',
    )
    return tau * (source - log_odds(prior.test_prior, label_smoothing))


def has_uniform_test_prior(prior: ClassPrior) -> bool:
    """Whether all classes are equally likely at test."""
    return bool(np.allclose(prior.test_prior, 1.0 / prior.num_classes, rtol=1e-9, atol=0.0))
