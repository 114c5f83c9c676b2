"""Large images: decoded and augmented one by one in loader processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

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


class KeyBatches(Sampler[list[Key]]):
    """The keys of an epoch, batch by batch, each batch made when it is asked for.

    All keys of two million samples at once would be half a gigabyte, and seconds before the first batch. This is kept
    by the process that hands out the work; loader processes get one batch of keys at a time.

    Args:
        order: sample of each place of the epoch, (n,).
        size: keys per batch; the last batch of the order may be smaller.
        batches: which batches to yield; a range that begins later resumes in the middle.
        repetitions: how often the epoch had each sample before, (n,); default never.
    """

    def __init__(
        self,
        order: npt.NDArray[np.int64],
        size: int,
        batches: range,
        repetitions: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.order, self.size, self.batches, self.repetitions = order, size, batches, repetitions

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Key]]:
        for number in self.batches:
            place = slice(number * self.size, (number + 1) * self.size)
            samples = self.order[place].tolist()
            before = [0] * len(samples) if self.repetitions is None else self.repetitions[place].tolist()
            yield list(map(Key, samples, before))


def stream(items: Dataset[Item], batches: KeyBatches, workers: int) -> Iterator[Batch]:
    """Yield one `Batch` for each list of keys, prepared by `workers` processes (0: in this one)."""
    # The loader seeds its processes from a generator; left alone it would draw from, and so change, the global one.
    loader = DataLoader(
        items,
        batch_sampler=batches,
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
