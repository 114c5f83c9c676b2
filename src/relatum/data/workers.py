"""Large images: decoded and augmented one by one in loader processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from relatum.batch import Batch
from relatum.data.augment.pipeline import TrainAugment
from relatum.data.preprocess import Preprocess
from relatum.data.seeding import generator_for
from relatum.data.source import ImageSource
from relatum.errors import RelatumError


class Key(NamedTuple):
    """A sample of an epoch: its index in the source, and how often the epoch had it before."""

    sample: int
    repetition: int = 0


Item = tuple[Tensor, int, int] | RelatumError


@dataclass(frozen=True)
class TrainItems(Dataset[Item]):
    """Augmented samples of one epoch; randomness is a function of (seed, epoch, index, repetition, rank)."""

    source: ImageSource
    augment: TrainAugment
    seed: int
    epoch: int
    rank: int

    def __getitem__(self, key: Key) -> Item:
        """Return (image (3, S, S), class id, index), or the error that a bad image raised."""
        generator = generator_for("sample", self.seed, self.epoch, key.sample, key.repetition, self.rank)
        try:
            image = self.augment.one(self.source.load(key.sample), generator)
        except RelatumError as error:
            return error
        return image, int(self.source.targets[key.sample]), key.sample


@dataclass(frozen=True)
class EvalItems(Dataset[Item]):
    """Samples as evaluation sees them."""

    source: ImageSource
    preprocess: Preprocess

    def __getitem__(self, key: Key) -> Item:
        """Return (image (3, S, S), class id, index), or the error that a bad image raised."""
        try:
            image = self.preprocess(self.source.load(key.sample))
        except RelatumError as error:
            return error
        return image, int(self.source.targets[key.sample]), key.sample


def count_repetitions(order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each entry of `order` (n,) how often the same value stands before it."""
    places = np.argsort(order, kind="stable")
    values = order[places]
    repetitions = np.empty(len(order), dtype=np.int64)
    repetitions[places] = np.arange(len(order)) - np.searchsorted(values, values, side="left")
    return repetitions


def stream(items: Dataset[Item], batches: Sequence[Sequence[Key]], workers: int) -> Iterator[Batch]:
    """Yield one `Batch` for each list of keys, prepared by `workers` processes (0: in this one)."""
    # The loader seeds its processes from a generator; left alone it would draw from, and so change, the global one.
    loader = DataLoader(
        items,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=min(workers, len(batches)),
        collate_fn=_collate,
        generator=torch.Generator().manual_seed(0),
    )
    for batch in loader:
        if isinstance(batch, RelatumError):
            raise batch
        yield batch


def _collate(items: Sequence[Item]) -> Batch | RelatumError:
    """Make a batch, or hand an error on as a value: raised here, torch would bury it in a worker's traceback."""
    images, targets, index = [], [], []
    for item in items:
        if isinstance(item, RelatumError):
            return item
        images.append(item[0])
        targets.append(item[1])
        index.append(item[2])
    return Batch(torch.stack(images), torch.tensor(targets), torch.tensor(index))
