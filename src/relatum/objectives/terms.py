"""What the losses take from a class prior: one number per class, computed in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relatum.objectives.checks import require
from relatum.prior import ClassPrior

Vector = npt.NDArray[np.float64]


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
