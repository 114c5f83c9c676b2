"""Two-stream algebra: the order is always [plain; related], and these functions are the only ones that know it.

With a related fraction f < 1 the related stream holds ceil(f N) of the N samples; `rows` names them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relatum.errors import ModelError

_ROUNDING = 1e-9  # 0.1 x 30 is a little more than 3 in binary and must not become 4


def related_count(n: int, fraction: float = 1.0) -> int:
    """How many of `n` samples are in the related stream."""
    return n if fraction == 1.0 else math.ceil(fraction * n - _ROUNDING)


def plain_count(total: int, fraction: float = 1.0) -> int:
    """How many samples a two-stream batch of `total` rows began with: the inverse of n + related_count(n)."""
    n = total // 2 if fraction == 1.0 else math.floor((total + _ROUNDING) / (1 + fraction))
    if n + related_count(n, fraction) != total:
        raise ModelError(
            f"cannot split {total} rows into two streams: they are not N plain and {fraction:g} x N related samples. "
            "Was the model in evaluation mode, or the relation detached?"
        )
    return n


def count_samples(targets: Any) -> int:
    """How many samples `targets` belong to: the length of the first tensor, array or list in them."""
    while isinstance(targets, Mapping | tuple):
        targets = next(iter(targets.values() if isinstance(targets, Mapping) else targets))
    return len(targets)


def repeat_targets(targets: Any, times: int = 2, rows: Tensor | None = None) -> Any:
    """Repeat everything per-sample in `targets`, stream after stream.

    Tensors and arrays are repeated along dimension 0, lists (one entry per sample) are concatenated with themselves,
    dictionaries and tuples are walked. Numbers, strings, None and 0-dimensional tensors belong to the batch as a
    whole and stay as they are.

    Args:
        targets: any nesting of the above.
        times: number of streams, 1 or 2.
        rows: the samples of the second stream; None means all.
    """
    if times == 1:
        return targets
    if isinstance(targets, Tensor | np.ndarray | list):
        return _append(targets, pick_rows(targets, rows))
    if isinstance(targets, Mapping):
        return {key: repeat_targets(value, times, rows) for key, value in targets.items()}
    if isinstance(targets, tuple):
        return same_tuple(targets, [repeat_targets(value, times, rows) for value in targets])
    return targets


def pick_rows(targets: Any, rows: Tensor | None) -> Any:
    """Return the targets of the samples `rows` only, in any nesting; None picks all."""
    if rows is None:
        return targets
    if isinstance(targets, Tensor):
        return targets[rows.to(targets.device)] if targets.ndim else targets
    if isinstance(targets, np.ndarray):
        return targets[rows.cpu().numpy()] if targets.ndim else targets
    if isinstance(targets, list):
        return [targets[i] for i in rows.tolist()]
    if isinstance(targets, Mapping):
        return {key: pick_rows(value, rows) for key, value in targets.items()}
    if isinstance(targets, tuple):
        return same_tuple(targets, [pick_rows(value, rows) for value in targets])
    return targets


def split_streams(output: Any, fraction: float = 1.0) -> tuple[Any, Any]:
    """Separate a two-stream output, tensors of N + M rows in any nesting, into (plain, related).

    What belongs to the batch as a whole, such as the loss in the output of a transformers model, is in both.
    """
    if isinstance(output, Tensor):
        if output.ndim == 0:
            raise ModelError("cannot split a single number into two streams.")
        n = plain_count(output.shape[0], fraction)
        plain, related = output.split([n, output.shape[0] - n])  # one cat in the backward pass; two slices cost more
        return plain, related
    if isinstance(output, Mapping):
        pairs = {key: _split_part(value, fraction) for key, value in output.items()}
        return {k: p for k, (p, _) in pairs.items()}, {k: r for k, (_, r) in pairs.items()}
    if isinstance(output, list):
        both = [_split_part(value, fraction) for value in output]
        return [p for p, _ in both], [r for _, r in both]
    if isinstance(output, tuple):
        plain, related = split_streams(list(output), fraction)
        return same_tuple(output, plain), same_tuple(output, related)
    return output, output


def _split_part(value: Any, fraction: float) -> tuple[Any, Any]:
    whole = isinstance(value, Tensor) and value.ndim == 0
    return (value, value) if whole else split_streams(value, fraction)


def _append(first: Any, second: Any) -> Any:
    if isinstance(first, list):
        return first + second
    if not first.ndim:
        return first
    return torch.cat([first, second]) if isinstance(first, Tensor) else np.concatenate([first, second])


def same_tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of `parts`; named as `like` if that is a named tuple."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
