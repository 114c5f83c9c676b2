"""Where the repeated blocks of a foreign model are: the layers after which features can be related."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from relatum.models.find import plain_modules

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the blocks that the model repeats, in the order in which they are registered.

    A block is an element of a Sequential or ModuleList whose elements are all of one class, and holds no such
    container itself: transformer blocks (also inside Swin's stages), residual blocks of a CNN. If a model has several
    kinds, those with attention go first, and of these the kind that is registered first (the encoder of a detector).

    Returns:
        (dotted name, module) of each block; empty if the model repeats nothing.
    """
    kinds: dict[type, list[tuple[str, nn.Module]]] = {}
    for name, block in _repeated(model):
        kinds.setdefault(type(block), []).append((name, block))
    attending = [blocks for blocks in kinds.values() if _has_attention(blocks[0][1])]
    if attending:
        return attending[0]
    return max((blocks for blocks in kinds.values() if len(blocks) > 1), key=_size, default=[])


def _repeated(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, container in plain_modules(model):
        if not isinstance(container, _CONTAINERS) or not _alike(container):
            continue
        for key, block in container.named_children():
            if not any(isinstance(part, _CONTAINERS) and _alike(part) for part in block.modules()):
                yield (f"{name}.{key}" if name else key), block


def _alike(container: nn.Module) -> bool:
    """Whether all elements are blocks of one class: made of other modules, and not containers themselves."""
    children = list(container.children())
    kinds = {type(child) for child in children}
    composite = all(any(True for _ in child.children()) for child in children)
    return len(kinds) == 1 and composite and not isinstance(children[0], _CONTAINERS)


def _has_attention(block: nn.Module) -> bool:
    names = [type(part).__name__.lower() for part in block.modules()]
    return any("attention" in name or "attn" in name for name in names)


def _size(blocks: list[tuple[str, nn.Module]]) -> int:
    return sum(p.numel() for _, block in blocks for p in block.parameters())
