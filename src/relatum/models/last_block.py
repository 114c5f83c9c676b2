"""The last block of a ViT, computed only for the tokens that somebody reads.

A classifier on the class token never sees what the last block makes of the patches. Their keys and values are needed,
their queries, projection and feed-forward part are not: ten twelfths of the block's multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from relatum.models.attention import attend, is_usual
from relatum.models.replaced import is_replaced, replaced_forward

Read = Callable[[Tensor], Tensor]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def block_for(block: nn.Module, tokens: Tensor, read: Read) -> Tensor:
    """Return what the block makes of the tokens that are read; they still attend to all of them.

    Args:
        block: one for which `can_be_partial` is true.
        tokens: (N, L, C).
        read: from (N, L, C) to the tokens that are read, (N, R, C).

    Returns:
        (N, R, C), up to rounding `read(block(tokens))`. Dropout draws fewer numbers, and so others.
    """
    part: Any = block
    normed = part.norm1(tokens)
    made = read(tokens) + part.drop_path1(part.ls1(attend(part.attn, read(normed), normed)))
    return made + part.drop_path2(part.ls2(part.mlp(part.norm2(made))))


def can_be_partial(block: nn.Module) -> bool:
    """Whether the block is timm's usual one, and nobody watches what it or a part of it computes."""
    return _is_usual(block) and not any(map(is_watched, block.modules()))


def is_watched(part: nn.Module) -> bool:
    """Whether the module has a hook; those of its parts do not count."""
    return any(getattr(part, kind) for kind in _HOOKS)


def hooks_of(part: nn.Module) -> list[Any]:
    """Return the hooks of one module, those of its parts not included."""
    return [hook for kind in _HOOKS for hook in getattr(part, kind).values()]


@contextmanager
def class_token_only(model: nn.Module) -> Iterator[None]:
    """Inside, every timm ViT in `model` that classifies its class token computes no other in its last block.

    Only for calls of the whole ViT: `forward_features` and the blocks themselves give all tokens, as before. A block
    that is watched is left alone, as is one with a watched part, unless the hook is behind the whole block, treats each
    token for itself and says so with an attribute `each_position_alone`: a relation.

    Args:
        model: a timm ViT, or anything that contains one; other models are left alone.
    """
    with replaced_forward([part for part in model.modules() if _reads_class_token(part)], _forward):
        yield


def _is_usual(block: nn.Module) -> bool:
    return type(block) is Block and is_usual(block.attn)


def _reads_class_token(part: nn.Module) -> bool:
    if type(part) is not VisionTransformer or part.cls_token is None or part.global_pool != "token":
        return False
    if is_replaced(part) or is_replaced(part.blocks[-1]):  # somebody, perhaps this very thing, was first
        return False
    # A checkpointed block runs again during the backward pass, when the ViT is no longer being called.
    if part.attn_pool is not None or part.grad_checkpointing or not _is_usual(part.blocks[-1]):
        return False
    block, *inside = part.blocks[-1].modules()
    behind = all(getattr(hook, "each_position_alone", False) for hook in hooks_of(block))
    return behind and not any(map(is_watched, inside))


def _forward(vit: Any, *inputs: Any, **named: Any) -> Any:
    """In place of the ViT's own `forward`, which it calls with a shorter last block."""
    if len(inputs) != 1 or named or torch.compiler.is_compiling():  # there may be a mask of the attention
        return VisionTransformer.forward(vit, *inputs, **named)
    block = vit.blocks[-1]
    block.forward = lambda tokens: block_for(block, tokens, _class_token)
    try:
        return VisionTransformer.forward(vit, *inputs)
    finally:
        del block.forward


def _class_token(tokens: Tensor) -> Tensor:
    return tokens[:, :1]
