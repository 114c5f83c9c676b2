"""Checked numpy views of what users hand to the metrics: arrays, lists or tensors of any device and precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from relatum.errors import DataError, ModelError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
ArrayLike = npt.ArrayLike | torch.Tensor

# Rows converted to float64 at a time: 50,000 x 1,000 logits would otherwise need 400 MB for a passing result.
_ROWS = 4096


def as_array(values: ArrayLike) -> npt.NDArray[Any]:
    """Return `values` as a numpy array; half-precision tensors, which numpy may not know, become float32."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    tensor = values.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.numpy()


def as_labels(values: ArrayLike, num_classes: int, what: str = "label") -> IntArray:
    """Return class ids (N,) as int64, or raise `DataError` for soft labels, no labels or ids outside 0..K-1."""
    labels = as_array(values)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iub"):
        raise DataError(
            f"evaluation needs one whole-number {what} per sample, (N,), but got shape {labels.shape} of "
            f"{labels.dtype}; soft targets (mixup, smoothing) belong to training only."
        )
    if labels.size == 0:
        raise DataError("there are no samples to score; check that the evaluation split is not empty.")
    labels = labels.astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if wrong.size:
        raise DataError(
            f"{what} {int(wrong[0])} is out of range for {num_classes} classes; it must be 0 to {num_classes - 1}."
        )
    return labels


def as_logits(values: ArrayLike) -> npt.NDArray[Any]:
    """Return logits (N, K) as a floating array, or raise `ModelError` when shape or values cannot be scored."""
    logits = as_array(values)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ModelError(f"logits must have shape (samples, classes), not {logits.shape}.")
    if logits.dtype.kind != "f":
        logits = logits.astype(np.float64)
    bad = int(np.count_nonzero(~np.isfinite(logits).all(axis=1)))
    if bad:
        raise ModelError(
            f"the model gave logits that are not finite for {bad} of {len(logits)} samples; it has probably diverged: "
            "go back to an earlier checkpoint, or lower the learning rate."
        )
    return logits


def as_pair(logits: ArrayLike, targets: ArrayLike) -> tuple[npt.NDArray[Any], IntArray]:
    """Return checked logits (N, K) and targets (N,) of equal length."""
    scores = as_logits(logits)
    labels = as_labels(targets, scores.shape[1])
    if len(scores) != len(labels):
        raise DataError(f"{len(scores)} rows of logits for {len(labels)} targets; give one target per row.")
    return scores, labels


def log_sum_exp(logits: npt.NDArray[Any]) -> FloatArray:
    """Return log sum_k exp(z_k) of each row of `logits` (N, K), in float64, (N,)."""
    result = np.empty(len(logits))
    for start in range(0, len(logits), _ROWS):
        rows = logits[start : start + _ROWS].astype(np.float64)
        largest = rows.max(axis=1)
        result[start : start + _ROWS] = largest + np.log(np.exp(rows - largest[:, None]).sum(axis=1))
    return result
