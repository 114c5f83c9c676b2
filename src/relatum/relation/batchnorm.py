"""BatchNorm after the streams have begun: each stream is normalised by itself, and only the plain one is remembered.

Together they would shift each other, and the running statistics, which the plain model is deployed with, would fit
neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relatum.relation.hooks import RelationHook

if TYPE_CHECKING:
    from relatum.relation.relation import Relation


class SetAside(RelationHook):
    """Pre-hook of a BatchNorm: it sees the plain rows; the related ones wait for `BringBack`."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)
        self.waiting: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Keep the plain rows of the input."""
        self.waiting = None
        plain = self.relation.plain_rows(args[0].shape[0])
        if plain is None or not module.training:
            return None  # evaluation mode normalises each row alone
        self.waiting = args[0][plain:]
        return (args[0][:plain], *args[1:])


class BringBack(RelationHook):
    """Forward hook of that BatchNorm: the related rows, normalised by their own mean and variance, join the output."""

    def __init__(self, relation: Relation, aside: SetAside) -> None:
        super().__init__(relation)
        self.aside = aside

    def __call__(self, module: nn.modules.batchnorm._BatchNorm, args: Any, output: Tensor) -> Tensor | None:
        """Append the related rows."""
        waiting, self.aside.waiting = self.aside.waiting, None
        if waiting is None:
            return None
        related = functional.batch_norm(waiting, None, None, module.weight, module.bias, training=True, eps=module.eps)
        # timm's BatchNormAct2d drops and activates inside the module.
        for part in (getattr(module, "drop", None), getattr(module, "act", None)):
            related = related if part is None else part(related)
        return torch.cat([output, related])


def keep_plain_statistics(relation: Relation, modules: list[nn.Module]) -> list[Any]:
    """Hook every BatchNorm among `modules`; return the handles."""
    handles = []
    for module in modules:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            aside = SetAside(relation)
            handles.append(module.register_forward_pre_hook(aside))
            handles.append(module.register_forward_hook(BringBack(relation, aside)))
    return handles
