"""What can be wrong with a batch of logits and targets, said before the arithmetic says it less clearly."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from relatum.errors import ConfigError, DataError, ModelError
from relatum.prior import ClassPrior

_FLAGS_AND_FLOATS = (torch.bool, torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Each entry of a bfloat16 row is off by up to 0.4 %, and so is their sum.
_ROW_SLACK = 0.01


def require(ok: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless `ok`; comparisons with NaN are false and so are refused as well."""
    if not ok:
        raise ConfigError(message)


def warn_absent_classes(prior: ClassPrior, name: str) -> None:
    """Warn that classes without training samples cannot be learned, where `name` depends strongly on their count."""
    absent = [prior.names[k] for k in range(prior.num_classes) if prior.counts[k] == 0]
    if not absent:
        return
    shown = ", ".join(f"'{class_name}'" for class_name in absent[:5]) + (", ..." if len(absent) > 5 else "")
    warnings.warn(
        f"{name}: {len(absent)} of {prior.num_classes} classes have no training sample ({shown}). Each counts as one "
        "sample, which keeps the loss finite, but nothing can be learned about it: add samples or drop the class.",
        UserWarning,
        stacklevel=3,
    )


def check_batch(logits: Tensor, targets: Tensor, num_classes: int | None, read_rows: bool = True) -> None:
    """Check shapes, types, label range and row sums.

    Args:
        logits: (N, K), floating point.
        targets: (N,) integer labels or (N, K) floating-point soft targets.
        num_classes: K of the class prior or the class weights; None where there is neither.
        read_rows: look at the values of soft targets, for which the host must wait for an accelerator.

    Raises:
        ModelError: the logits are not (N, K) with the K that is expected.
        DataError: an empty batch, or targets of the wrong shape, type or range.
    """
    _check_logits(logits, num_classes)
    if targets.ndim == 1:
        _check_rows(logits, targets)
        _check_labels(targets, logits.shape[1])
    elif targets.ndim == 2:
        _check_rows(logits, targets)
        _check_soft(targets, logits.shape[1])
        if read_rows and not torch.compiler.is_compiling():  # reading values would break the graph
            _check_row_sums(targets)
    else:
        raise DataError(f"targets must be labels (N,) or soft targets (N, K), not of shape {tuple(targets.shape)}.")


def _check_logits(logits: Tensor, num_classes: int | None) -> None:
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ModelError(
            f"logits must be floating point of shape (N, K), not {logits.dtype} of shape {tuple(logits.shape)}; "
            "flatten other dimensions into N first."
        )
    if logits.shape[0] == 0:
        raise DataError("the batch is empty, so its loss is not defined; skip empty batches before the objective.")
    if num_classes is not None and logits.shape[1] != num_classes:
        raise ModelError(
            f"the model gives {logits.shape[1]} logits, but the class prior has {num_classes} classes; "
            f"build the model with num_classes={num_classes} or count the classes it was built for."
        )


def _check_rows(logits: Tensor, targets: Tensor) -> None:
    rows, given = logits.shape[0], targets.shape[0]
    if rows == given:
        return
    # Two streams are the usual reason, and their cure is not obvious from a shape error.
    cure = "with a relation attached, pass relation.targets(y)" if rows == 2 * given else "give one target per row"
    raise DataError(f"{rows} rows of logits but {given} targets; {cure}.")


def _check_labels(labels: Tensor, num_classes: int) -> None:
    if labels.dtype in _FLAGS_AND_FLOATS:
        raise DataError(f"labels (N,) must be integers, not {labels.dtype}; soft targets have shape (N, K).")
    if torch.compiler.is_compiling():  # reading values would break the graph
        return
    # One pass and one transfer: on an accelerator each .item() would be a synchronisation of its own.
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= num_classes:
        raise DataError(
            f"label {low if low < 0 else high} is out of range for {num_classes} classes; labels must be 0 to "
            f"{num_classes - 1}: check the class map of the data and num_classes of the model."
        )


def _check_soft(targets: Tensor, num_classes: int) -> None:
    if targets.shape[1] != num_classes:
        raise DataError(f"soft targets have {targets.shape[1]} classes but the logits {num_classes}; they must agree.")
    if not targets.is_floating_point():
        raise DataError(f"soft targets (N, K) must be floating point, not {targets.dtype}; use targets.float().")


def _check_row_sums(targets: Tensor) -> None:
    sums = targets.detach().float().sum(dim=1)
    low, high = torch.aminmax(sums)
    least, low, high = torch.stack([targets.detach().float().amin(), low, high]).tolist()
    if least >= 0 and abs(low - 1) <= _ROW_SLACK and abs(high - 1) <= _ROW_SLACK:  # false for NaN
        return
    if least < 0:
        raise DataError(f"soft targets must be probabilities, but one is {least:.4g}; they must be 0 or more.")
    worst = int((sums - 1).abs().nan_to_num(torch.inf).argmax())
    raise DataError(
        f"soft targets must sum to one in each row, but row {worst} sums to {float(sums[worst]):.4g}; give class "
        "probabilities, as mixup, cutmix and smoothing do. Several labels for one image are not supported."
    )


def require_labels(targets: Tensor, name: str, why: str) -> None:
    """Refuse soft targets (N, K) where the loss `name` is not defined for them, and say `why`."""
    if targets.ndim == 2:
        raise DataError(f"{name} needs one label per image, not soft targets: {why} Set data.mixup=0, data.cutmix=0.")


def check_features(logits: Tensor, features: Tensor | None, name: str) -> Tensor:
    """Return the features (N, C) of logits (N, K), or say what is wrong with them."""
    if features is None:
        raise ModelError(
            f"{name} needs the features that the classifier saw: call objective(logits, targets, features) with the "
            "input (N, C) of the last layer."
        )
    if features.ndim != 2 or features.shape[0] != logits.shape[0] or not features.is_floating_point():
        raise ModelError(
            f"features of {name} must be floating point of shape ({logits.shape[0]}, C), the pooled input of the "
            f"classifier, one row per row of logits, not {features.dtype} of shape {tuple(features.shape)}."
        )
    return features
