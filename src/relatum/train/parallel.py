"""One step in several processes: gradients are averaged over them, so that all take the same step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from relatum.batch import Batch
from relatum.data.loaders import Loaders
from relatum.errors import ConfigError
from relatum.processes import rank, world
from relatum.train.task import Task

_BETWEEN_RANKS = 15_485_863  # any large prime: keeps the chance of the processes apart


class Parallel:
    """A task whose gradients are the means over all processes; alone, the task itself.

    Args:
        task: what is trained; it has to be on its device.
        device: that device.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task = task
        # Models have parameters that a step does not use, such as the class token of a ViT that averages its patches.
        self._shared = (
            DistributedDataParallel(
                task, device_ids=[device] if device.type == "cuda" else None, find_unused_parameters=True
            )
            if world() > 1
            else None
        )

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Run the task on a batch of this process."""
        output: dict[str, Tensor] = self.task(batch) if self._shared is None else self._shared(batch)
        return output

    def keep_to_itself(self, keep: bool) -> AbstractContextManager[Any]:
        """While `keep` is true gradients are added up here only: for all micro-batches of a step but the last."""
        return self._shared.no_sync() if self._shared is not None and keep else nullcontext()


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of dropout and the like in an epoch, another one in each process."""
    return (seed * 1_000_003 + epoch + rank() * _BETWEEN_RANKS) % 2**63


def check_shares(loaders: Loaders) -> None:
    """Refuse loaders that give every process all the data: gradients would be averaged over the same images."""
    sampler = loaders.train.sampler
    if (sampler.rank, sampler.world) != (rank(), world()):
        raise ConfigError(
            f"the loaders are those of process {sampler.rank} of {sampler.world}, but this is {rank()} of {world()}; "
            "build them after the processes have met (relatum.processes.join), or give rank and world."
        )
