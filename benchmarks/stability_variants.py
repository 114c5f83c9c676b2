"""What `stability.py` compares: the two layers, and the stable layer with one of its precautions taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from relatum.relation import Relation
from relatum.relation.attention import Variant
from relatum.relation.stable import StableLayer


def layers(relation: Relation) -> Iterator[StableLayer]:
    """Yield the stable layers of a relation."""
    return (part for part in relation.module.modules() if isinstance(part, StableLayer))


class OtherAttention(StableLayer):
    """The stable layer with its attention written out, so that two of its precautions can be switched off."""

    normalised = True
    in_float32 = True

    def _attend(self, asking: Tensor, everyone: Tensor, ignored: Tensor | None) -> Tensor:
        query = self.query(asking).unflatten(-1, (self.heads, self.width)).permute(1, 2, 0, 3)
        key, value = self.key_value(everyone).transpose(0, 1).unsqueeze(1).chunk(2, dim=-1)
        key, value = (t.expand(-1, self.heads, -1, -1) for t in (key, value))
        with torch.autocast("cpu", enabled=False):
            if self.in_float32:
                query, key, value = query.float(), key.float(), value.float()
            if self.normalised:
                query, key = (functional.rms_norm(t, (self.width,)) for t in (query, key))
            mixed = functional.scaled_dot_product_attention(query, key, value)
        attended: Tensor = self.out(mixed.permute(2, 0, 1, 3).reshape(asking.shape).to(asking.dtype))
        return attended


class RawLogits(OtherAttention):
    """Queries and keys as they are."""

    normalised = False


class LowPrecision(OtherAttention):
    """Attention in the precision of the pass."""

    in_float32 = False


class RawLowPrecision(RawLogits):
    """Both."""

    in_float32 = False


def unchanged(relation: Relation) -> None:
    """The layer as it is."""


def scaled(value: float) -> Callable[[Relation], None]:
    """Let the branches begin at another scale than 0.1."""

    def change(relation: Relation) -> None:
        for layer in layers(relation):
            nn.init.constant_(layer.scale, value)

    return change


def fixed_scale(relation: Relation) -> None:
    """No learned scale: plain residual branches at 1."""
    scaled(1.0)(relation)
    for layer in layers(relation):
        layer.scale.requires_grad_(False)


def with_class(kind: type[StableLayer]) -> Callable[[Relation], None]:
    """Let the layers compute as `kind` does; their parameters stay."""

    def change(relation: Relation) -> None:
        for layer in list(layers(relation)):
            layer.__class__ = kind

    return change


# name: the layer it starts from, and what is changed
VARIANTS: dict[str, tuple[Variant, Callable[[Relation], None]]] = {
    "paper": ("paper", unchanged),
    "stable": ("stable", unchanged),
    "stable-scale-0": ("stable", scaled(0.0)),
    "stable-scale-1": ("stable", scaled(1.0)),
    "stable-no-scale": ("stable", fixed_scale),
    "stable-raw-logits": ("stable", with_class(RawLogits)),
    "stable-low-precision": ("stable", with_class(LowPrecision)),
    "stable-raw-low": ("stable", with_class(RawLowPrecision)),
}
NAMES = ("plain", *VARIANTS)


def order(name: str) -> int:
    """Where a variant stands in the table."""
    return NAMES.index(name)
