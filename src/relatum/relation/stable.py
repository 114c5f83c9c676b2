"""The encoder layer over the batch that stays finite at every depth, in low precision and at high learning rates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# The branches start small, not at zero: the streams differ from the first step on, and every weight gets a gradient.
BRANCH_SCALE = 0.1


class StableLayer(nn.Module):
    """Pre-norm attention and feed-forward over the batch, each as a small learned step away from the plain features.

    What is bounded, and by what: features are normalised before each branch; queries and keys are normalised, so that
    no logit exceeds the square root of the head width; softmax runs in float32; a learned scale per channel, starting
    at 0.1, lets each branch grow only as far as it helps. All query heads share one key and one value head: when only
    some samples are related (`rows`), projecting the keys of the others is what costs, and this makes it cheap.

    Args:
        dim: feature width C.
        heads: query heads; must divide C.
        hidden: feed-forward width.
        dropout: share of the channels of each branch that is dropped, the same at all positions of a sample (drawing
            random numbers for every position is what dropout costs on a CPU); active in training mode only.
    """

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.norm1 = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * self.width)
        self.out = nn.Linear(dim, dim)
        self.scale1 = nn.Parameter(torch.full((dim,), BRANCH_SCALE))
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        self.scale2 = nn.Parameter(torch.full((dim,), BRANCH_SCALE))
        self.dropout = nn.Dropout(dropout)

    def forward(self, everyone: Tensor, rows: Tensor | None = None, ignored: Tensor | None = None) -> Tensor:
        """Relate samples position by position.

        Args:
            everyone: (N, L, C), all samples of the batch.
            rows: (M,) the samples to relate to everyone; None for all.
            ignored: (L, N) bool, samples that nobody attends to at a position.

        Returns:
            The related samples, (M, L, C).
        """
        normed = self.norm1(everyone)
        x, asking = (everyone, normed) if rows is None else (everyone[rows], normed[rows])
        x = x + self._attend(asking, normed, ignored) * self._gate(self.scale1, len(x))
        hidden = self.linear1(self.norm2(x)).relu()
        related: Tensor = x + self.linear2(hidden) * self._gate(self.scale2, len(x))
        return related

    def _gate(self, scale: Tensor, samples: int) -> Tensor:
        """The scale of a branch with dropped channels, (M, 1, C): one draw for all positions of a sample."""
        gate: Tensor = self.dropout(scale.expand(samples, 1, -1))
        return gate

    def _attend(self, asking: Tensor, everyone: Tensor, ignored: Tensor | None) -> Tensor:
        m, positions, dim = asking.shape
        query = self.query(asking).unflatten(-1, (self.heads, self.width)).permute(1, 2, 0, 3)  # (L, H, M, C/H)
        key, value = self.key_value(everyone).transpose(0, 1).unsqueeze(1).chunk(2, dim=-1)  # (L, 1, N, C/H)
        allowed = None if ignored is None else ~ignored[:, None, None, :]
        # Low precision is kept out of the one place where it can overflow.
        with torch.autocast(asking.device.type, enabled=False):
            precise = torch.promote_types(asking.dtype, torch.float32)
            query, key = (functional.rms_norm(t.to(precise), (self.width,)) for t in (query, key))
            key, value = (t.expand(-1, self.heads, -1, -1) for t in (key, value.to(precise)))
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        attended: Tensor = self.out(mixed.permute(2, 0, 1, 3).reshape(m, positions, dim).to(asking.dtype))
        return attended
