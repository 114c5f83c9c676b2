"""The quicker of equal ways to compute a model, for as long as somebody trains or measures it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from relatum.models.attention import quick_attention
from relatum.models.last_block import class_token_only
from relatum.models.small_maps import quick_small_maps


@contextmanager
def quickly(model: nn.Module) -> Iterator[None]:
    """Inside, `model` and its gradients are the same up to rounding, in less time; afterwards it is as before.

    Args:
        model: anything; what is neither a timm ViT nor a convolution on a small map is left alone.
    """
    with class_token_only(model), quick_attention(model), quick_small_maps(model):
        yield
