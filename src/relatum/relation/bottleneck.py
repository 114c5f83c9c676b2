"""Relate in fewer dimensions than the features have."""

from __future__ import annotations

from torch import Tensor, nn


class BottleneckLayer(nn.Module):
    """x + up(layer(down(x))): project to a narrower width, relate the samples there, project back, add.

    Args:
        dim: feature width C.
        width: the narrower width, at which `layer` works.
        layer: an encoder layer over the batch, called as `layer(everyone, rows, ignored)`.
    """

    def __init__(self, dim: int, width: int, layer: nn.Module) -> None:
        super().__init__()
        self.down = nn.Linear(dim, width)
        self.layer = layer
        self.up = nn.Linear(width, dim)

    def forward(self, everyone: Tensor, rows: Tensor | None = None, ignored: Tensor | None = None) -> Tensor:
        """Relate `rows` of everyone (N, L, C) to all of them, (M, L, C); see `StableLayer.forward`."""
        x = everyone if rows is None else everyone.index_select(0, rows)
        related: Tensor = x + self.up(self.layer(self.down(everyone), rows, ignored))
        return related
