"""The faster one of several equal ways to compute the attention of a timm ViT, for a few tokens on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn
from torch.nn import functional

from relatum.models.replaced import is_replaced, replaced_forward

# On CPUs torch's fused kernel is made for long sequences. In float32, forward and backward of a ViT's blocks take about
# as long either way up to 65 tokens (0.96 of it without the kernel at 50), and longer without it from 99 on (1.05, at
# 197 1.14). In bfloat16 attention itself takes the kernel 4 times as long at 17 tokens and 2.5 times at 197. Longer
# sequences are left to it, also because the plain way keeps a weight for every pair of tokens.
_LONGEST = {torch.float32: 64, torch.bfloat16: 300}
# The weights of 17 or 26 tokens take 1.6 to 2 times as long in bfloat16 as in float32, casts included; those of 5, and
# mostly from 32 on, less. Likely because a vector of the processor holds 32 numbers in bfloat16, and 16 in float32.
_WEIGHTS_IN_FLOAT32 = range(16, 32)


def attend(attention: Any, queries: Tensor, tokens: Tensor) -> Tensor:
    """Return what an attention for which `is_usual` is true makes of some tokens that look at all of them.

    Args:
        attention: timm's.
        queries: (N, R, C), those that look.
        tokens: (N, L, C); the same tensor as `queries` where all of them do.

    Returns:
        (N, R, C).
    """
    q, k, v = _projected(attention, queries, tokens)
    weights = attention.attn_drop(_weights(attention.q_norm(q), attention.k_norm(k), attention.scale))
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    made: Tensor = attention.proj_drop(attention.proj(attention.norm(mixed)))
    return made


def is_usual(attention: nn.Module) -> bool:
    """Whether it is timm's usual attention: one linear layer for queries, keys and values, and no gate."""
    part: Any = attention
    return type(part) is Attention and type(part.qkv) is nn.Linear and part.gate is None


@contextmanager
def quick_attention(model: nn.Module) -> Iterator[None]:
    """Inside, every attention of timm in `model` is computed the fastest way for its input; afterwards as before.

    The ways differ by rounding. What was not fused before stays so.

    Args:
        model: a timm ViT, parts of one, or anything that contains them; other models are left alone.
    """
    fused: list[Any] = [part for part in model.modules() if vars(part).get("fused_attn") and not _is_quick(part)]
    usual = [part for part in fused if is_usual(part) and not is_replaced(part)]
    others = [part for part in fused if part not in usual]
    handles = [part.register_forward_pre_hook(_choose) for part in others]
    try:
        with replaced_forward(usual, _forward):
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
    """Whether the plain way is faster than the fused kernel for tokens (N, L, C)."""
    if tokens.device.type != "cpu" or tokens.ndim != 3:
        return False
    return tokens.shape[1] <= _LONGEST.get(precision_of_products(tokens), 0)


def precision_of_products(tokens: Tensor) -> torch.dtype:
    """What products of the tokens are computed in."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else tokens.dtype


def _forward(attention: Any, tokens: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """In place of timm's `forward`, which has the weights in the precision of the products where it is not fused."""
    _choose(attention, (tokens,))
    if attention.fused_attn or attn_mask is not None or is_causal:
        made: Tensor = Attention.forward(attention, tokens, attn_mask, is_causal)
        return made
    return attend(attention, tokens, tokens)


def _is_quick(part: nn.Module) -> bool:
    """Whether an outer `quick_attention` has it in hand already."""
    return getattr(vars(part).get("forward"), "func", None) is _forward


def _weights_in_float32(length: int, precision: torch.dtype) -> bool:
    return precision == torch.bfloat16 and length in _WEIGHTS_IN_FLOAT32


def _weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """softmax(scale q k'), (N, H, R, L), of queries (N, H, R, D) and keys (N, H, L, D)."""
    if q.device.type == "cpu" and _weights_in_float32(k.shape[2], q.dtype):
        products = (q @ k.transpose(-2, -1)).float()
        return products.mul_(scale).softmax(dim=-1).to(q.dtype)
    return ((q * scale) @ k.transpose(-2, -1)).softmax(dim=-1)


def _projected(attention: Any, queries: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, H, R, D), keys and values (N, H, L, D)."""
    layer, width = attention.qkv, attention.attn_dim
    if queries is tokens:
        q, k, v = layer(tokens).chunk(3, dim=-1)
    else:
        own, others = (None, None) if layer.bias is None else (layer.bias[:width], layer.bias[width:])
        q = functional.linear(queries, layer.weight[:width], own)
        k, v = functional.linear(tokens, layer.weight[width:], others).chunk(2, dim=-1)
    return _heads(q, attention), _heads(k, attention), _heads(v, attention)


def _heads(tokens: Tensor, attention: Any) -> Tensor:
    """(N, L, H * D) -> (N, H, L, D)."""
    return tokens.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)
