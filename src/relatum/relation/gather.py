"""The relation batch across processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relatum.errors import ConfigError


def relate_across_processes(features: Tensor, attention: nn.Module) -> Tensor:
    """Relate the features (N, ..., C) of all processes and return this process's rows, with exact gradients.

    Each process computes the attention over all world x N samples and keeps its own N rows. The gathering is
    differentiable: a loss on this process's rows reaches the features of every process.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError("BatchFormer(gather=True) needs torch.distributed; start with torchrun, or set gather=False.")
    n, rank = features.shape[0], dist.get_rank()
    everyone: Tensor = _Gather.apply(features)
    related: Tensor = attention(everyone)
    return related[rank * n : (rank + 1) * n]


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
