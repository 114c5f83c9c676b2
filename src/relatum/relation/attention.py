"""BatchAttention: a transformer encoder whose sequence is the mini-batch."""

from __future__ import annotations

from torch import Tensor, nn

from relatum.errors import ConfigError


class BatchAttention(nn.Module):
    """Let the samples of a mini-batch attend to each other: (N, ..., C) -> the same shape.

    Attention is always over dimension 0. Everything between the first and the last dimension is an independent
    position, so an input of (N, L, C) with L = 1 gives what (N, C) gives. There is no position code and no mask:
    permuting the samples permutes the output.

    Each layer is the papers' post-norm encoder layer: attention, residual, LayerNorm, feed-forward with ReLU,
    residual, LayerNorm; dropout on attention weights, attention output, hidden and feed-forward output.

    Args:
        dim: feature width C.
        heads: attention heads; must divide C.
        hidden: width of the feed-forward part; None means C, as in the papers.
        dropout: dropout probability, active in training mode only.
        layers: number of encoder layers.
    """

    def __init__(
        self, dim: int, heads: int = 4, hidden: int | None = None, dropout: float = 0.5, layers: int = 1
    ) -> None:
        super().__init__()
        check_heads(dim, heads)
        if layers < 1:
            raise ConfigError(f"BatchAttention needs at least one layer, not {layers}.")
        # batch_first=False is what makes dimension 0, our samples, the sequence. With True nothing would be related.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, hidden or dim, dropout, batch_first=False) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Relate the samples of x: (N, C) or (N, ..., C)."""
        positions = x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)  # (N, L, C)
        for layer in self.layers:
            positions = layer(positions)
        return positions.reshape(x.shape)


def check_heads(dim: int, heads: int) -> None:
    """Raise a ConfigError unless `heads` divides the feature width `dim`."""
    if heads < 1 or dim % heads:
        valid = ", ".join(str(h) for h in range(1, 17) if dim % h == 0)
        raise ConfigError(f"{heads} attention heads do not divide the feature width {dim}; possible: {valid}.")
