"""Which of timm's two ways to compute attention is the faster one for a few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# On CPUs torch's fused kernel is made for long sequences. In float32, forward and backward of a ViT's blocks take about
# as long either way up to 65 tokens (0.96 of it without the kernel at 50), and longer without it from 99 on (1.05, at
# 197 1.14). In bfloat16 attention itself takes the kernel 4 times as long at 17 tokens and 2.5 times at 197. Longer
# sequences are left to it, also because the plain way keeps a weight for every pair of tokens.
_LONGEST = {torch.float32: 64, torch.bfloat16: 300}


@contextmanager
def quick_attention(model: nn.Module) -> Iterator[None]:
    """Inside, every attention of timm in `model` is computed the faster way for what it is given; afterwards as before.

    Both ways are timm's own and differ by rounding. What was not fused before stays so.

    Args:
        model: a timm ViT, parts of one, or anything that contains them; other models are left alone.
    """
    fused: list[Any] = [part for part in model.modules() if vars(part).get("fused_attn")]
    handles = [part.register_forward_pre_hook(_choose) for part in fused]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for part in fused:
            part.fused_attn = True


def _choose(attention: Any, inputs: tuple[Any, ...]) -> None:
    """Set timm's switch, before each call: what is long in one stage may be short in the next."""
    attention.fused_attn = not (inputs and _short(inputs[0]))


def _short(tokens: Tensor) -> bool:
    """Whether the plain way is the faster one for tokens (N, L, C)."""
    if tokens.device.type != "cpu" or tokens.ndim != 3:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else tokens.dtype
    return tokens.shape[1] <= _LONGEST.get(dtype, 0)
