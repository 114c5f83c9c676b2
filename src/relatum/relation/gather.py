"""The relation batch across processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relatum.errors import ConfigError
from relatum.relation.attention import BatchAttention


def relate_across_processes(
    features: Tensor, attention: BatchAttention, rows: Tensor | None = None, padding: Tensor | None = None
) -> Tensor:
    """Relate samples of this process to those of all processes, with exact gradients.

    Each process computes the attention of its own rows over all world x N samples. The gathering is
    differentiable: a loss on this process's rows reaches the features of every process.

    Args:
        features: (N, ..., C) of this process.
        attention: a `BatchAttention`.
        rows: (M,) which of the N to relate; None relates all.
        padding: (N, ...) bool of this process.

    Returns:
        The related samples, (M, ..., C).
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError("gather=True needs torch.distributed; start with torchrun, or set gather=False.")
    n = features.shape[0]
    own = torch.arange(n, device=features.device) if rows is None else rows
    everyone: Tensor = _Gather.apply(features)
    everywhere = None if padding is None else _Gather.apply(padding.to(torch.uint8)).bool()
    if len(attention.layers) == 1:
        related: Tensor = attention(everyone, dist.get_rank() * n + own, everywhere)
        return related
    # A second layer attends to the related samples of the other processes: their rows are computed here too.
    m, offsets = len(own), n * torch.arange(dist.get_world_size(), device=own.device)
    related = attention(everyone, _Gather.apply(own) + offsets.repeat_interleave(m), everywhere)
    return related[dist.get_rank() * m : (dist.get_rank() + 1) * m]


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes; backward adds up what every process asks of our rows.

    Putting back only one's own slice, the common shortcut, would lose the gradients of the other processes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        ctx.rows = rows.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.rows
        return total[start : start + ctx.rows]
