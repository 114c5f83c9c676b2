"""The encoder layer over the batch that stays finite at every depth, in low precision and at high learning rates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# The branches start small, not at zero: the streams differ from the first step on, and every weight gets a gradient.
BRANCH_SCALE = 0.1


class StableLayer(nn.Module):
    """Pre-norm attention over the batch, as a small learned step away from the plain features.

    What is bounded, and by what: features are normalised before each branch; queries and keys are normalised, so that
    no logit exceeds the square root of the head width; softmax runs in float32; a learned scale per channel, starting
    at 0.1, lets each branch grow only as far as it helps. What is cheap: all query heads share one key and one value
    head (when only some samples are related, projecting the keys of the others is what costs), and there is no
    feed-forward part unless asked for: the host's blocks have one.

    Args:
        dim: feature width C.
        heads: query heads; must divide C.
        hidden: feed-forward width; None for no feed-forward part.
        dropout: share of the channels of each branch that is dropped, the same at all positions of a sample (drawing
            random numbers for every position is what dropout costs on a CPU); active in training mode only.
    """

    def __init__(self, dim: int, heads: int, hidden: int | None, dropout: float) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * self.width)
        self.out = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), BRANCH_SCALE))
        self.dropout = nn.Dropout(dropout)
        self.feed_forward: nn.Sequential | None = None
        if hidden is not None:
            parts = (nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
            self.feed_forward = nn.Sequential(*parts)
            self.feed_scale = nn.Parameter(torch.full((dim,), BRANCH_SCALE))

    def forward(self, everyone: Tensor, rows: Tensor | None = None, ignored: Tensor | None = None) -> Tensor:
        """Relate samples position by position.

        Args:
            everyone: (N, L, C), all samples of the batch.
            rows: (M,) the samples to relate to everyone; None for all.
            ignored: (L, N) bool, samples that nobody attends to at a position.

        Returns:
            The related samples, (M, L, C).
        """
        normed = self.norm(everyone)
        x, asking = (everyone, normed) if rows is None else (t.index_select(0, rows) for t in (everyone, normed))
        related: Tensor = x + self._attend(asking, normed, ignored) * self._gate(self.scale, len(x))
        if self.feed_forward is not None:
            related = related + self.feed_forward(related) * self._gate(self.feed_scale, len(x))
        return related

    def _gate(self, scale: Tensor, samples: int) -> Tensor:
        """The scale of a branch with dropped channels, (M, 1, C): one draw for all positions of a sample."""
        gate: Tensor = self.dropout(scale.expand(samples, 1, -1))
        return gate

    def _attend(self, asking: Tensor, everyone: Tensor, ignored: Tensor | None) -> Tensor:
        m, positions, dim = asking.shape
        # One key for all heads: the heads of a sample are just more queries. (L, 1, M H, C/H), (L, 1, N, C/H)
        query = self.query(asking).transpose(0, 1).reshape(positions, 1, m * self.heads, self.width)
        key, value = self.key_value(everyone).transpose(0, 1).unsqueeze(1).chunk(2, dim=-1)
        allowed = None if ignored is None else ~ignored[:, None, None, :]
        # Low precision is kept out of the one place where it can overflow.
        with torch.autocast(asking.device.type, enabled=False):
            precise = torch.promote_types(asking.dtype, torch.float32)
            query, key = (functional.rms_norm(t.to(precise), (self.width,)) for t in (query, key))
            mixed = functional.scaled_dot_product_attention(query, key, value.to(precise), attn_mask=allowed)
        attended: Tensor = self.out(mixed.reshape(positions, m, dim).transpose(0, 1).to(asking.dtype))
        return attended
