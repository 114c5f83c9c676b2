"""Hooks on an unmodified host. They are callable objects: closures would point at the original after a deepcopy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.relation.gather import relate_across_processes

if TYPE_CHECKING:
    from relatum.relation.relation import Relation


class RelationHook:
    """What every hook of ours derives from, so that a copied model can be searched for them."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation


class RelateInput(RelationHook):
    """Forward pre-hook of a classifier: features (N, C) become [plain; related] (2N, C), or related alone."""

    def __init__(self, relation: Relation, attention: nn.Module) -> None:
        super().__init__(relation)
        self.attention = attention

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Replace the first argument of the classifier while the relation is active."""
        if not self.relation.active:
            return None
        features = args[0]
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ModelError(
                f"BatchFormer relates pooled features (N, C), but the classifier receives {shape}; "
                "name the layer that receives pooled features with BatchFormer(at=...)."
            )
        if not torch.compiler.is_compiling():
            self.relation.note_batch(features.shape[0])
        return (self._streams(features), *args[1:])

    def _streams(self, features: Tensor) -> Tensor:
        spec = self.relation.spec
        related = relate_across_processes(features, self.attention) if spec.gather else self.attention(features)
        # Under autocast the encoder may answer in another precision than the backbone.
        related = related.to(features.dtype)
        return torch.cat([features, related]) if spec.shared_classifier else related
