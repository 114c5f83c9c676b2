"""How far confidence can be believed: ECE, MCE and the reliability table.

Top-label calibration: the confidence of a sample is its largest softmax probability or, for a model trained on
sigmoids, the sigmoid of its largest logit. Bins are of equal width on [0, 1] and closed on the right,
(edge_b, edge_b+1], so that confidence 1 lies in the last bin and confidence 0 exactly in none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relatum.errors import ConfigError, DataError
from relatum.evaluate._arrays import ArrayLike, FloatArray, IntArray, as_array, as_logits, log_sum_exp

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """What was claimed and what held, bin by bin.

    Args:
        edges: bin boundaries, (B + 1,).
        count: samples in each bin, (B,).
        accuracy: share of them that were right, (B,); NaN in an empty bin.
        confidence: their mean confidence, (B,); NaN in an empty bin.
        samples: all samples, including those of confidence exactly 0, which are in no bin.
    """

    edges: FloatArray
    count: IntArray
    accuracy: FloatArray
    confidence: FloatArray
    samples: int

    @property
    def gap(self) -> FloatArray:
        """|accuracy - confidence| of each bin, (B,); NaN in an empty bin."""
        return np.abs(self.accuracy - self.confidence)

    def ece(self) -> float:
        """Expected calibration error: the gaps, each weighted by its bin's share of the samples."""
        return float(np.sum(self.count / self.samples * np.nan_to_num(self.gap)))

    def mce(self, min_count: int = 1) -> float | None:
        """Maximum calibration error: the largest gap of the bins with at least `min_count` samples; None without one.

        A bin with few samples has a large gap by chance alone, hence `min_count`.
        """
        if min_count < 1:
            raise ConfigError(f"min_count must be at least 1, not {min_count}: an empty bin has no gap.")
        gaps = self.gap[self.count >= min_count]
        return float(gaps.max()) if gaps.size else None

    def to_dict(self) -> dict[str, list[Any]]:
        """Return edges, count, accuracy and confidence as JSON lists, None where a bin is empty."""
        return {
            "edges": self.edges.tolist(),
            "count": self.count.tolist(),
            "accuracy": [None if np.isnan(v) else float(v) for v in self.accuracy],
            "confidence": [None if np.isnan(v) else float(v) for v in self.confidence],
        }


def confidence(logits: ArrayLike) -> FloatArray:
    """Return the largest softmax probability of each row of `logits` (N, K), in float64, (N,)."""
    scores = as_logits(logits)
    return np.exp(scores.max(axis=1).astype(np.float64) - log_sum_exp(scores))


def sigmoid_confidence(logits: ArrayLike, bias: float = 0.0) -> FloatArray:
    """Return sigmoid(z + bias) of the largest z in each row of `logits` (N, K), in float64, (N,).

    Args:
        logits: of a model that was trained on sigmoids, (N, K).
        bias: what its raw logits lack for log-odds: `sigmoid_bias` of the objective.
    """
    if not np.isfinite(bias):
        raise ConfigError(f"the bias of sigmoid confidences must be a finite number, not {bias}.")
    largest = as_logits(logits).max(axis=1).astype(np.float64) + bias
    # As a logarithm first: exp(-z) of a very negative logit would overflow.
    return np.asarray(np.exp(-np.logaddexp(0.0, -largest)))


def reliability(confidences: ArrayLike, correct: ArrayLike, bins: int = BINS) -> Reliability:
    """Sort samples into confidence bins.

    Args:
        confidences: confidence of each prediction in [0, 1], (N,). Values in float32 meet edges rounded to float32, so
            that a value on an edge stays on it.
        correct: whether each prediction was right, (N,).
        bins: B, the number of bins of equal width.
    """
    if bins < 1:
        raise ConfigError(f"a reliability table needs at least 1 bin, not {bins}.")
    claimed, right = _checked_confidences(confidences, correct)
    # A quotient of integers is the double nearest to the edge; adding up the width would drift off it.
    edges = np.arange(bins + 1) / bins
    position = np.searchsorted(edges.astype(claimed.dtype), claimed, side="left") - 1
    inside = position >= 0
    position = position[inside]
    count = np.bincount(position, minlength=bins)
    hits = np.bincount(position, weights=right[inside], minlength=bins)
    total = np.bincount(position, weights=claimed[inside], minlength=bins)
    return Reliability(edges, count.astype(np.int64), _mean(hits, count), _mean(total, count), len(claimed))


def expected_calibration_error(confidences: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Return the ECE of predictions with `confidences` (N,) that were `correct` (N,) or not."""
    return reliability(confidences, correct, bins).ece()


def maximum_calibration_error(
    confidences: ArrayLike, correct: ArrayLike, bins: int = BINS, min_count: int = 1
) -> float | None:
    """Return the MCE over the bins with at least `min_count` samples; None when there is no such bin."""
    return reliability(confidences, correct, bins).mce(min_count)


def _checked_confidences(confidences: ArrayLike, correct: ArrayLike) -> tuple[npt.NDArray[Any], FloatArray]:
    claimed, right = as_array(confidences), np.asarray(as_array(correct), dtype=np.float64)
    if claimed.ndim != 1 or claimed.shape != right.shape or claimed.size == 0:
        raise DataError(
            f"calibration needs one confidence and one hit or miss per sample, but got shapes {claimed.shape} and "
            f"{right.shape}."
        )
    if claimed.dtype.kind != "f":
        claimed = claimed.astype(np.float64)
    # A float32 softmax may round to just above 1; anything further off is not a probability.
    if not np.all((claimed >= 0) & (claimed <= 1 + 1e-6)):
        raise DataError("confidences must be probabilities in [0, 1]; apply a softmax to logits first.")
    return np.minimum(claimed, claimed.dtype.type(1)), right


def _mean(total: npt.NDArray[Any], count: npt.NDArray[Any]) -> FloatArray:
    result = np.full(len(count), np.nan)
    np.divide(total, count, out=result, where=count > 0)
    return result
