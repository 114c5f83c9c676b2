"""What all samplers share: one global order per epoch, dealt out to the ranks.

Order is a pure function of (seed, epoch, rank, world). The global order is the same on all ranks, and rank r takes
every world-th sample from r on. Where it does not divide evenly it is padded by wrapping around to its start, so all
ranks have the same length; that length does not change from epoch to epoch.

Repeated augmentation (`views` above 1) takes only the first samples of the epoch's order and puts each of them `views`
times side by side, so that the epoch keeps its length and another part of the data is seen in each epoch. The views of
a sample stand in one batch over all ranks, but where such a batch begins or ends within them (batch size times ranks is
no multiple of `views`, as in DeiT with 3 views and 1024 images). The repeated order is dealt out like any other, every
world-th place to a rank, so neighbouring ranks hold the views of a sample, as in DeiT; with a single process they meet
in its own batch, and a relation attends over them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from relatum.errors import ConfigError, DataError

Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

_STREAM = 7301  # keeps this room's random numbers apart from others made from the same seed and epoch


class Sampler(ABC):
    """Base of all samplers.

    Args:
        targets: class id of each sample, (N,).
        num_classes: K.
        seed: seed of the order, >= 0.
        epochs: length of the training, which some samplers need.
        rank: this process.
        world: number of processes.
        views: how often each drawn sample is repeated, side by side, within the length of the epoch; 1 is off.

    Attributes:
        name: what recipes call it.
        balances: whether rare classes are seen more often than they occur.
        size: samples per epoch over all ranks, before padding.
    """

    name: ClassVar[str] = ""
    balances: ClassVar[bool] = True

    def __init__(
        self,
        targets: npt.ArrayLike,
        num_classes: int,
        *,
        seed: int = 0,
        epochs: int = 1,
        rank: int = 0,
        world: int = 1,
        views: int = 1,
    ) -> None:
        self.targets: Indices = np.asarray(targets, dtype=np.int64)
        if not len(self.targets):
            raise DataError("there are no training samples to draw from; check the training split.")
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} does not exist among {world} processes; ranks are 0 to {world - 1}.")
        if views < 1:
            raise ConfigError(f"data.repeats is {views}; each drawn image needs at least one view, so set 1 or more.")
        self.counts: Indices = np.bincount(self.targets, minlength=num_classes)
        self.num_classes, self.seed, self.epochs, self.rank, self.world = num_classes, seed, epochs, rank, world
        self.views, self.size = views, len(self.targets)

    @abstractmethod
    def order(self, epoch: int) -> Indices:
        """Return the sample indices of `epoch` over all ranks, before views are repeated, (size,)."""

    def indices(self, epoch: int) -> Indices:
        """Return this rank's sample indices of `epoch`, (len(self),)."""
        drawn = self.order(epoch)
        if self.views > 1:
            drawn = np.repeat(drawn[: -(-self.size // self.views)], self.views)[: self.size]
        padded = np.resize(drawn, len(self) * self.world)  # np.resize repeats from the start
        return padded[self.rank :: self.world]

    def __len__(self) -> int:
        return -(-self.size // self.world)

    def _random(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([_STREAM, self.seed, epoch])


class ClassWeightedSampler(Sampler):
    """Draw a class by its probability, then one of its samples; N draws per epoch.

    The samples of a class are taken in a random order that is dealt out to its end before a new one begins, so that
    within an epoch the samples of a class are used equally often, give or take one.
    """

    @abstractmethod
    def class_probabilities(self, epoch: int) -> Weights:
        """Return the probability of each class in `epoch`, (K,); 0 for classes without samples."""

    def order(self, epoch: int) -> Indices:
        """Return the drawn samples, (size,)."""
        random = self._random(epoch)
        drawn = _draw_classes(self.class_probabilities(epoch), self.size, random)
        by_class = np.argsort(self.targets, kind="stable")
        ends = np.cumsum(self.counts)
        order = np.empty(self.size, dtype=np.int64)
        places = np.split(np.argsort(drawn, kind="stable"), np.cumsum(np.bincount(drawn, minlength=self.num_classes)))
        for k, where in enumerate(places[: self.num_classes]):
            if len(where):
                order[where] = _deal(by_class[ends[k] - self.counts[k] : ends[k]], len(where), random)
        return order


def _draw_classes(probabilities: Weights, draws: int, random: np.random.Generator) -> Indices:
    steps = np.cumsum(probabilities)
    drawn = np.searchsorted(steps, random.random(draws) * steps[-1], side="right")
    return np.minimum(drawn, np.flatnonzero(probabilities)[-1])  # the product may round up to the very end


def _deal(members: Indices, draws: int, random: np.random.Generator) -> Indices:
    rounds = -(-draws // len(members))
    return np.concatenate([random.permutation(members) for _ in range(rounds)])[:draws]
