"""How much top-1 accuracy would move with another test set of the same size."""

from __future__ import annotations

import numpy as np

from relatum.errors import ConfigError, DataError
from relatum.evaluate._arrays import ArrayLike, as_array


def bootstrap_interval(
    correct: ArrayLike, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of an accuracy.

    Drawing N of N hits and misses with replacement gives a binomial number of hits, so each resample is one binomial
    draw: exactly the bootstrap, without its N x resamples memory. With all or no predictions right the interval is a
    point.

    Args:
        correct: hit or miss of each sample, (N,).
        resamples: number of bootstrap resamples.
        level: share of the resampled accuracies inside the interval.
        seed: of the draws; equal seeds give equal intervals.

    Returns:
        Lower and upper end, in [0, 1].
    """
    hits = as_array(correct).astype(bool)
    if hits.ndim != 1 or hits.size == 0:
        raise DataError(f"the bootstrap needs one hit or miss per sample, (N,), but got shape {hits.shape}.")
    if resamples < 1:
        raise ConfigError(f"the bootstrap needs at least 1 resample, not {resamples}.")
    if not 0 < level < 1:
        raise ConfigError(f"the level of an interval lies between 0 and 1, not {level}.")
    accuracies = np.random.default_rng(seed).binomial(hits.size, hits.mean(), size=resamples) / hits.size
    low, high = np.quantile(accuracies, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
