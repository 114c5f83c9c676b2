"""How often the model is right, for whom: pure functions on numpy arrays or torch tensors, computed in float64.

Most functions take the confusion matrix, which holds all that top-1 metrics need. What is not defined is NaN (in an
array) or None (as a single value), never 0: a class without test samples has no accuracy, and neither has a group
without a class that has some.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relatum.errors import ConfigError, DataError
from relatum.evaluate._arrays import (
    ArrayLike,
    FloatArray,
    IntArray,
    as_array,
    as_labels,
    as_logits,
    as_pair,
    log_sum_exp,
)


def predict_classes(logits: ArrayLike) -> IntArray:
    """Return the class of the largest logit of each row of (N, K), (N,); of equal ones the first."""
    return as_logits(logits).argmax(axis=1).astype(np.int64)


def confusion_matrix(predictions: ArrayLike, targets: ArrayLike, num_classes: int) -> IntArray:
    """Count pairs of true class (row) and predicted class (column).

    Args:
        predictions: predicted class ids, (N,).
        targets: true class ids, (N,).
        num_classes: K; ids outside 0..K-1 are a `DataError`.

    Returns:
        Counts, (K, K) int64.
    """
    predicted = as_labels(predictions, num_classes, "prediction")
    true = as_labels(targets, num_classes)
    if len(predicted) != len(true):
        raise DataError(f"{len(predicted)} predictions for {len(true)} targets; give one each.")
    cells = np.bincount(true * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes).astype(np.int64)


def class_accuracy(confusion: ArrayLike) -> FloatArray:
    """Return the share of each class's samples that were recognised (recall), (K,); NaN for an absent class."""
    counts = _checked_confusion(confusion)
    return _ratio(np.diag(counts), counts.sum(axis=1))


def class_precision(confusion: ArrayLike) -> FloatArray:
    """Return the share of each class's predictions that were right, (K,); NaN for a class never predicted."""
    counts = _checked_confusion(confusion)
    return _ratio(np.diag(counts), counts.sum(axis=0))


def balanced_accuracy(confusion: ArrayLike) -> float:
    """Return the mean of the class accuracies over the classes present in the targets (macro recall)."""
    return float(np.nanmean(class_accuracy(confusion)))


def macro_f1(confusion: ArrayLike) -> float:
    """Return the mean F1 over the classes present in the targets.

    F1 of a class is 2 TP / (2 TP + FP + FN), so a present class that is never predicted has F1 = 0. Classes that occur
    in the predictions only are left out, as in `balanced_accuracy`: the result equals scikit-learn's
    `f1_score(average="macro", labels=<classes in the targets>)`. Their predictions still count as misses of others.
    """
    counts = _checked_confusion(confusion)
    support, predicted = counts.sum(axis=1), counts.sum(axis=0)
    present = support > 0
    return float(np.mean(2 * np.diag(counts)[present] / (support + predicted)[present]))


def top_k_correct(logits: ArrayLike, targets: ArrayLike, k: int) -> npt.NDArray[np.bool_]:
    """Say for each row of (N, K) whether the true class is among the `k` largest logits, (N,) bool.

    Of equal logits the class with the lower id ranks first, so that k = 1 agrees with `predict_classes`.
    `k` above K means K: every sample is then correct.
    """
    if k < 1:
        raise ConfigError(f"top-k needs k of at least 1, not {k}.")
    scores, labels = as_pair(logits, targets)
    own = scores[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(scores.shape[1])[None, :] < labels[:, None]
    rank = np.count_nonzero((scores > own) | ((scores == own) & earlier), axis=1)
    return rank < min(k, scores.shape[1])


def top_k_accuracy(logits: ArrayLike, targets: ArrayLike, k: int = 1) -> float:
    """Return the share of samples whose true class is among the `k` largest logits; see `top_k_correct`."""
    return float(top_k_correct(logits, targets, k).mean())


def group_accuracy(accuracies: ArrayLike, classes: ArrayLike) -> float | None:
    """Return the mean accuracy over some classes.

    Args:
        accuracies: accuracy of each class, (K,), NaN where it has no samples.
        classes: ids of the classes in the group, (M,); M may be 0.

    Returns:
        The mean over those of the group's classes that have samples; None when there is none.
    """
    values = np.asarray(as_array(accuracies), dtype=np.float64)[np.asarray(as_array(classes), dtype=np.int64)]
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else None


def worst_class(accuracies: ArrayLike) -> int | None:
    """Return the id of the class with the lowest accuracy (K,), of equal ones the first; None when all are NaN."""
    values = np.asarray(as_array(accuracies), dtype=np.float64)
    return None if np.isnan(values).all() else int(np.nanargmin(values))


def negative_log_likelihood(logits: ArrayLike, targets: ArrayLike) -> float:
    """Return the mean of -log softmax(z)[true class] over logits (N, K) and targets (N,), in nats."""
    scores, labels = as_pair(logits, targets)
    own = scores[np.arange(len(labels)), labels].astype(np.float64)
    return float(np.mean(log_sum_exp(scores) - own))


def _ratio(part: IntArray, whole: IntArray) -> FloatArray:
    result = np.full(len(whole), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def _checked_confusion(confusion: ArrayLike) -> IntArray:
    counts = as_array(confusion)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise DataError(f"a confusion matrix has shape (K, K), not {counts.shape}; see confusion_matrix().")
    if counts.sum() == 0:
        raise DataError("the confusion matrix is empty: there are no samples to score.")
    return counts.astype(np.int64)
