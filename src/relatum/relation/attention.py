"""BatchAttention: a transformer encoder whose sequence is the mini-batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from relatum.errors import ConfigError, suggest
from relatum.relation.stable import StableLayer

Variant = Literal["paper", "stable"]


class PaperLayer(nn.TransformerEncoderLayer):
    """The papers' layer: attention, residual, LayerNorm, feed-forward with ReLU, residual, LayerNorm.

    Dropout acts on attention weights, attention output, hidden and feed-forward output.
    """

    def __init__(self, dim: int, heads: int, hidden: int | None, dropout: float) -> None:
        # batch_first=False is what makes dimension 0, our samples, the sequence. With True nothing would be related.
        super().__init__(dim, heads, hidden or dim, dropout, batch_first=False)

    def forward(  # type: ignore[override]
        self, everyone: Tensor, rows: Tensor | None = None, ignored: Tensor | None = None
    ) -> Tensor:
        """Relate `rows` of everyone (N, L, C) to all of them; see `StableLayer.forward`."""
        x = everyone if rows is None else everyone.index_select(0, rows)
        attended, _ = self.self_attn(x, everyone, everyone, key_padding_mask=ignored, need_weights=False)
        x = self.norm1(x + self.dropout1(attended))
        hidden = self.dropout(self.linear1(x).relu())
        related: Tensor = self.norm2(x + self.dropout2(self.linear2(hidden)))
        return related


LAYERS: dict[str, type[PaperLayer] | type[StableLayer]] = {"paper": PaperLayer, "stable": StableLayer}


class BatchAttention(nn.Module):
    """Let the samples of a mini-batch attend to each other: (N, ..., C) -> the same shape.

    Attention is always over dimension 0. Everything between the first and the last dimension is an independent
    position, so an input of (N, L, C) with L = 1 gives what (N, C) gives. There is no position code:
    permuting the samples permutes the output.

    Args:
        dim: feature width C.
        heads: attention heads; must divide C.
        hidden: width of the feed-forward part; None means C, as in the papers, and none at all if stable.
        dropout: dropout probability, active in training mode only.
        layers: number of encoder layers.
        variant: "paper", the post-norm layer of the papers, or "stable" (see `StableLayer`).
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        hidden: int | None = None,
        dropout: float = 0.5,
        layers: int = 1,
        variant: Variant = "paper",
    ) -> None:
        super().__init__()
        check_heads(dim, heads)
        if layers < 1:
            raise ConfigError(f"BatchAttention needs at least one layer, not {layers}.")
        if variant not in LAYERS:
            raise ConfigError(f"unknown variant '{variant}'; {suggest(variant, LAYERS)}")
        self.layers = nn.ModuleList(LAYERS[variant](dim, heads, hidden, dropout) for _ in range(layers))

    def forward(self, x: Tensor, rows: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """Relate the samples of a batch.

        Args:
            x: (N, C) or (N, ..., C).
            rows: (M,) indices of the samples to relate, each to the whole batch; None relates all of them.
            padding: (N, ...) bool, the shape of x without C; True marks positions that hold no content. They neither
                attend (they come out as they went in) nor are attended to.

        Returns:
            The related samples, (M, ..., C).
        """
        everyone = x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)  # (N, L, C)
        ignored = None if padding is None else _ignored(padding.reshape(everyone.shape[:2]))
        related = everyone
        for layer in self.layers:
            related = layer(everyone, rows, ignored)
            # A second layer attends to what the first has made of the related samples.
            everyone = related if rows is None else everyone.index_copy(0, rows, related.to(everyone.dtype))
        related = related.reshape(-1, *x.shape[1:])
        if padding is None:
            return related
        before, empty = (x, padding) if rows is None else (x[rows], padding[rows])
        return torch.where(empty.unsqueeze(-1), before, related.to(x.dtype))


def _ignored(padding: Tensor) -> Tensor:
    """Keys to leave out, (L, N), from padding (N, L); where all samples are padded none is, or softmax gives NaN."""
    padded = padding.bool().T
    return padded & ~padded.all(1, keepdim=True)


def check_heads(dim: int, heads: int) -> None:
    """Raise a ConfigError unless `heads` divides the feature width `dim`."""
    if heads < 1 or dim % heads:
        valid = ", ".join(str(h) for h in range(1, 17) if dim % h == 0)
        raise ConfigError(f"{heads} attention heads do not divide the feature width {dim}; possible: {valid}.")
