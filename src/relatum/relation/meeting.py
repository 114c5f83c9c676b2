"""Before samples travel between processes: who brings how many, and whether they fit together."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relatum.errors import ConfigError

_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DIMENSIONS = 6  # of one sample, more than any layer gives
# What a process tells the others: two numbers in which they may differ, then those in which they must agree.
_MAY_DIFFER = 2
_groups: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None


@dataclass(frozen=True)
class Meeting:
    """The processes that relate their samples to each other at one site, in one pass.

    Args:
        group: the group of processes over which samples and gradients travel.
        rank: the number of this process.
        samples: how many samples each process brings.
        related: how many of them each process relates.
    """

    group: Any
    rank: int
    samples: tuple[int, ...]
    related: tuple[int, ...]

    @property
    def start(self) -> int:
        """Where the samples of this process begin among all."""
        return sum(self.samples[: self.rank])


def meet(features: Tensor, related: int, layers: int, padded: bool, site: str) -> Meeting:
    """Exchange a few numbers with all processes; raise on all of them when they do not fit together.

    Args:
        features: (N, ..., C) of this process.
        related: how many of the N it relates.
        layers: depth of the attention.
        padded: whether it has a padding mask.
        site: where the features come from, for errors.
    """
    shape = (*features.shape[1:], *[0] * _DIMENSIONS)[:_DIMENSIONS]
    kind = _TYPES.index(features.dtype) if features.dtype in _TYPES else -1
    gradient = features.requires_grad and torch.is_grad_enabled()
    header = (len(features), related, features.ndim, *shape, kind, padded, gradient, layers)
    try:
        group = own_group(features.device)
        own = torch.tensor(header, dtype=torch.int64, device=_place(group, features.device))
        told = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(told, own, group=group)
    except RuntimeError as error:
        # The error stays what it is, the loss of a connection, for those who handle that.
        error.add_note(
            f"gather=True at '{site}': this process waited for the samples of the others in vain. All must run the "
            "same model with gather=True, in training mode, for the same number of steps; or another has failed."
        )
        raise
    headers = torch.stack(told).tolist()
    _check_agreement(headers, site)
    samples, counts = (tuple(header[at] for header in headers) for at in range(_MAY_DIFFER))
    return Meeting(group, dist.get_rank(), samples, counts)


def own_group(device: torch.device) -> Any:
    """Return a group of all processes for the relation alone; made when first needed.

    Collectives of one group must be called in the same order everywhere. DistributedDataParallel averages gradients
    while the backward pass runs, as soon as they are complete; where processes use different parts of the model, that
    is before our exchange on one process and after it on another. In a group of our own the two cannot be mistaken.
    Weak references: `destroy_process_group` must find nobody else holding the groups.
    """
    global _groups
    world = dist.group.WORLD
    group = None if _groups is None or _groups[0]() is not world else _groups[1]()
    if group is None:
        group = dist.new_group(timeout=_timeout(world, device))
        _groups = (weakref.ref(world), weakref.ref(group))
    return group


def _place(group: Any, device: torch.device) -> torch.device:
    """Where a few numbers are exchanged: on the CPU if the group can, for a GPU need not come to rest for it."""
    try:
        group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError):
        return device
    return torch.device("cpu")


def _timeout(world: Any, device: torch.device) -> Any:
    """How long the group of all processes waits; torch would give ours the default of its backend."""
    try:
        return world._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None


def _check_agreement(headers: list[list[int]], site: str) -> None:
    for rank, header in enumerate(headers):
        if header[_MAY_DIFFER:] != headers[0][_MAY_DIFFER:]:
            raise ConfigError(
                f"gather=True at '{site}': the processes do not fit together: process 0 has {_describe(headers[0])}; "
                f"process {rank} has {_describe(header)}. All must run the same model in the same mode, on inputs of "
                "the same size and precision."
            )


def _describe(header: list[int]) -> str:
    ndim, shape, (kind, padded, gradient, layers) = header[2], header[3 : 3 + _DIMENSIONS], header[3 + _DIMENSIONS :]
    number = str(_TYPES[kind]).removeprefix("torch.") if kind >= 0 else "other numbers"
    mask = "a padding mask" if padded else "no padding mask"
    return (
        f"samples of shape {tuple(shape[: ndim - 1])} in {number}, {mask}, {'' if gradient else 'no '}gradients, "
        f"{layers} layer{'s' if layers != 1 else ''}"
    )
