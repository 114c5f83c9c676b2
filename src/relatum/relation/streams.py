"""Two-stream algebra: the order is always [plain; related], and these functions are the only ones that know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relatum.errors import ModelError


def repeat_targets(targets: Any, times: int = 2) -> Any:
    """Repeat everything per-sample in `targets`, stream after stream.

    Tensors and arrays are repeated along dimension 0, lists (one entry per sample) are concatenated with themselves,
    dictionaries and tuples are walked. Numbers, strings, None and 0-dimensional tensors belong to the batch as a
    whole and stay as they are.
    """
    if times == 1:
        return targets
    if isinstance(targets, Tensor):
        return torch.cat([targets] * times) if targets.ndim else targets
    if isinstance(targets, np.ndarray):
        return np.concatenate([targets] * times) if targets.ndim else targets
    if isinstance(targets, list):
        return targets * times
    if isinstance(targets, Mapping):
        return {key: repeat_targets(value, times) for key, value in targets.items()}
    if isinstance(targets, tuple):
        parts = [repeat_targets(value, times) for value in targets]
        return type(targets)(*parts) if hasattr(targets, "_fields") else tuple(parts)
    return targets


def split_streams(output: Any) -> tuple[Any, Any]:
    """Separate a two-stream output, (2N, ...) tensors in any nesting, into (plain, related)."""
    if isinstance(output, Tensor):
        if output.ndim == 0 or output.shape[0] % 2:
            raise ModelError(
                f"cannot split an output of shape {tuple(output.shape)} into two streams: its first dimension is not "
                "even. Was the model in evaluation mode, or the relation detached?"
            )
        plain, related = output.chunk(2)
        return plain, related
    if isinstance(output, Mapping):
        pairs = {key: split_streams(value) for key, value in output.items()}
        return {k: p for k, (p, _) in pairs.items()}, {k: r for k, (_, r) in pairs.items()}
    if isinstance(output, list | tuple):
        both = [split_streams(value) for value in output]
        return type(output)(p for p, _ in both), type(output)(r for _, r in both)
    return output, output
