"""What can be wrong with a batch of logits and targets, said before the arithmetic says it less clearly."""

from __future__ import annotations

import torch
from torch import Tensor

from relatum.errors import ConfigError, DataError, ModelError

_FLAGS_AND_FLOATS = (torch.bool, torch.float64, torch.float32, torch.float16, torch.bfloat16)


def require(ok: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless `ok`; comparisons with NaN are false and so are refused as well."""
    if not ok:
        raise ConfigError(message)


def check_batch(logits: Tensor, targets: Tensor, num_classes: int | None) -> None:
    """Check shapes, types and label range.

    Args:
        logits: (N, K), floating point.
        targets: (N,) integer labels or (N, K) floating-point soft targets.
        num_classes: K of the class prior or the class weights; None where there is neither.

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
