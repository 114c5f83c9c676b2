"""One way to read logits from whatever a model returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relatum.errors import ModelError


def as_logits(output: Any) -> Tensor:
    """Return logits (N, K) from a tensor, an object with `.logits`, or a tuple of heads, which are averaged."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    heads = list(output) if isinstance(output, list | tuple) else []
    if heads and all(isinstance(head, Tensor) and head.shape == heads[0].shape for head in heads):
        return torch.stack(heads).mean(0)
    kind = f"a {type(output).__name__}" if not isinstance(output, list | tuple) else f"{len(heads)} unequal outputs"
    raise ModelError(
        f"the model returned {kind}; expected logits (N, K), an object with .logits, or heads of one shape."
    )
