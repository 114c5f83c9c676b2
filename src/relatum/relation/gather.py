"""The relation batch across processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from relatum.errors import ConfigError
from relatum.relation.attention import BatchAttention
from relatum.relation.meeting import Meeting, meet


def relate_across_processes(
    features: Tensor,
    attention: BatchAttention,
    rows: Tensor | None = None,
    padding: Tensor | None = None,
    site: str = "",
) -> Tensor:
    """Relate samples of this process to those of all processes, with exact gradients.

    Each process computes the attention of its own rows over the samples of all, in the order of the processes. The
    gathering is differentiable: a loss on this process's rows reaches the features of every process. The processes may
    have different numbers of samples, also none; everything else about the features must agree.

    Args:
        features: (N, ..., C) of this process.
        attention: a `BatchAttention`.
        rows: (M,) which of the N to relate; None relates all.
        padding: (N, ...) bool of this process.
        site: where the features come from, for errors.

    Returns:
        The related samples, (M, ..., C).
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError("gather=True needs torch.distributed; start with torchrun, or set gather=False.")
    if dist.get_world_size() == 1:
        alone: Tensor = attention(features, rows, padding)
        return alone
    own = torch.arange(len(features), device=features.device) if rows is None else rows
    depth = len(attention.layers)
    meeting = meet(features, len(own), depth, padding is not None, site)
    everyone: Tensor = _Gather.apply(features, meeting)
    everywhere = None if padding is None else _concatenate(padding.to(torch.uint8), meeting, meeting.samples).bool()
    own = own + meeting.start
    if depth == 1:
        related: Tensor = attention(everyone, own, everywhere)
        return related
    # A second layer attends to the related samples of the other processes: their rows are computed here too.
    related = attention(everyone, _concatenate(own, meeting, meeting.related), everywhere)
    return related.split(list(meeting.related))[meeting.rank]


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes; backward adds up what every process asks of our rows.

    Putting back only one's own slice, the common shortcut, would lose the gradients of the other processes.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, meeting: Meeting) -> Tensor:
        ctx.meeting = meeting
        return _concatenate(own, meeting, meeting.samples)

    @staticmethod
    @once_differentiable  # a second derivative would miss the other processes: refused, not wrong
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        meeting: Meeting = ctx.meeting
        # A copy, always: the gradient that autograd hands over may also be on its way to somebody else.
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=meeting.group)
        return total[meeting.start : meeting.start + meeting.samples[meeting.rank]], None


def _concatenate(own: Tensor, meeting: Meeting, sizes: tuple[int, ...]) -> Tensor:
    """Return the rows of all processes, one after the other; `sizes` says how many each has.

    Collectives want equal shapes: shorter parts travel with zeros at their end, which are cut off on arrival.
    """
    missing = max(sizes) - len(own)
    if missing:
        own = torch.cat([own, own.new_zeros(missing, *own.shape[1:])])
    own = own.contiguous()
    parts = [torch.empty_like(own) for _ in sizes]
    dist.all_gather(parts, own, group=meeting.group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
