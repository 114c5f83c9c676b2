"""Batches for training and evaluation: the door of this room is `build_loaders`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relatum import processes
from relatum.batch import Batch
from relatum.config import DataConfig
from relatum.data.augment.mixing import Mixer
from relatum.data.augment.pipeline import TrainAugment, build_augment
from relatum.data.memory import Progress, decode_all, held_smaller, lives_in_memory, stored_side
from relatum.data.preprocess import SMALL_IMAGE, Preprocess
from relatum.data.quarantine import Quarantine, set_aside
from relatum.data.sampler_base import Sampler
from relatum.data.samplers import build_sampler
from relatum.data.seeding import generator_for
from relatum.data.sizes import SizeSchedule, first_epoch_at, size_schedule
from relatum.data.source import ImageSource
from relatum.data.splits import open_splits
from relatum.data.workers import EvalItems, KeyBatches, TrainItems, count_repetitions, stream
from relatum.errors import ConfigError, DataError
from relatum.prior import ClassPrior

# Images in memory that are augmented at once, several batches at a time where these are small.
_TOGETHER = 512


class TrainLoader:
    """Augmented training batches; each epoch is a pure function of (seed, epoch, rank).

    The last incomplete batch is dropped; with fewer samples than `batch_size` there is one batch of them all.

    Args:
        source: the training samples.
        sampler: order and repetition.
        augment: from uint8 images to inputs.
        batch_size: samples per batch.
        seed: of the augmentation.
        workers: loader processes, where images do not live in memory.
        images: all images (N, 3, S, S) uint8, where they do; smaller where the augmentation enlarges its crop.
        mixer: mixup or cutmix over each batch.
        sizes: progressive resolution; None shows all epochs at one size.
        calm_from: first epoch without AutoAugment or RandAugment; None: they stay.
        unmixed_from: first epoch without mixup and cutmix; None: they stay.
    """

    def __init__(
        self,
        source: ImageSource,
        sampler: Sampler,
        augment: TrainAugment,
        batch_size: int,
        *,
        seed: int = 0,
        workers: int = 0,
        images: Tensor | None = None,
        mixer: Mixer | None = None,
        sizes: SizeSchedule | None = None,
        calm_from: int | None = None,
        unmixed_from: int | None = None,
    ) -> None:
        if len(source) < 2:
            raise DataError(f"{source.name} has {len(source)} training sample; training needs at least two.")
        self.source, self.sampler, self.augment, self.mixer = source, sampler, augment, mixer
        self.batch_size = min(batch_size, len(sampler))
        self.seed, self.workers, self.images, self.sizes = seed, workers, images, sizes
        self.calm_from, self.unmixed_from = calm_from, unmixed_from
        self.targets = torch.from_numpy(source.targets)

    def __len__(self) -> int:
        # As many as one process with the whole batch would have: what pads the ranks to one length is no batch.
        return max(self.sampler.size // (self.batch_size * self.sampler.world), 1)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from position `start` on, the same as in the full epoch.

        Targets are class ids (N,), or soft (N, K) where mixup or cutmix has mixed.
        """
        self._check_place(epoch, start)
        if self.images is None:
            items = TrainItems(self.source, self.augment_at(epoch), self.seed, epoch, self.sampler.rank)
            batches = stream(items, self.keys(epoch, start), self.workers)
        else:
            batches = self._from_memory(self.images, self.sampler.indices(epoch), epoch, start)
        mixer = self.mixer_at(epoch)
        for position, batch in enumerate(batches, start):
            if mixer is not None:
                batch = mixer(batch, generator_for("mixing", self.seed, epoch, position, self.sampler.rank))
            yield batch if self.sizes is None else self.sizes.shrink(batch, epoch)

    def augment_at(self, epoch: int) -> TrainAugment:
        """Return the augmentation of an epoch."""
        calm = self.calm_from is not None and epoch >= self.calm_from
        return self.augment.without_policy() if calm else self.augment

    def mixer_at(self, epoch: int) -> Mixer | None:
        """Return what mixes the batches of an epoch; None where they stay as they are."""
        return None if self.unmixed_from is not None and epoch >= self.unmixed_from else self.mixer

    def work(self, epochs: float) -> float:
        """Return what the first `epochs` epochs cost: with smaller images first, less than as many full ones."""
        return epochs if self.sizes is None else self.sizes.work(epochs)

    def keys(self, epoch: int, start: int = 0) -> KeyBatches:
        """Return which samples each batch of `epoch` from position `start` on holds; no image is read."""
        self._check_place(epoch, start)
        order = self.sampler.indices(epoch)
        return KeyBatches(order, self.batch_size, range(start, len(self)), count_repetitions(order))

    def _check_place(self, epoch: int, start: int) -> None:
        if epoch < 0 or not 0 <= start <= len(self):
            raise ConfigError(f"epoch {epoch}, batch {start}: epochs start at 0, batches are 0 to {len(self)}.")

    def _from_memory(self, images: Tensor, order: npt.NDArray[np.int64], epoch: int, start: int) -> Iterator[Batch]:
        # Prepared in this thread: it costs a few percent of a training step on the CPU. A second thread would have
        # OpenMP threads of its own, more than there are cores: measured, the whole loop was 14 % slower.
        augment, size, together = self.augment_at(epoch), self.batch_size, max(_TOGETHER // self.batch_size, 1)
        # Always the same batches together, wherever an epoch is taken up again: their bits must not depend on it.
        for first in range(start - start % together, len(self), together):
            positions = range(first, min(first + together, len(self)))
            index = torch.from_numpy(order[first * size : positions.stop * size])
            generators = [generator_for("batch", self.seed, epoch, at, self.sampler.rank) for at in positions]
            batches = augment.batches(images.index_select(0, index), generators)
            for position, inputs, of_batch in zip(positions, batches, index.split(size), strict=True):
                if position >= start:
                    yield Batch(inputs, self.targets[of_batch], of_batch)


class EvalLoader:
    """Every sample of a split once, in order, without augmentation.

    With several processes, each rank has a contiguous part of its own; the parts cover the split without padding, so
    they differ in length by at most one sample and a rank may have none.

    Args:
        source: the samples.
        preprocess: resize, crop, normalise.
        batch_size: samples per batch; the last may be smaller.
        workers: loader processes, where images do not live in memory.
        images: this rank's images (n, 3, S, S) uint8, where they do.
        rank: this process.
        world: number of processes.
    """

    def __init__(
        self,
        source: ImageSource,
        preprocess: Preprocess,
        batch_size: int,
        *,
        workers: int = 0,
        images: Tensor | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.source, self.preprocess, self.batch_size = source, preprocess, batch_size
        self.workers, self.images, self.world = workers, images, world
        self.indices = eval_part(len(source), rank, world)
        self.targets = torch.from_numpy(source.targets)

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.images is None:
            order = np.arange(self.indices.start, self.indices.stop, dtype=np.int64)
            keys = KeyBatches(order, self.batch_size, range(len(self)))
            yield from stream(EvalItems(self.source, self.preprocess), keys, self.workers)
            return
        for at in range(0, len(self.indices), self.batch_size):
            part = self.indices[at : at + self.batch_size]
            index = torch.arange(part.start, part.stop)
            pixels = self.images[part.start - self.indices.start : part.stop - self.indices.start]
            yield Batch(self.preprocess.normalise(pixels), self.targets[index], index)


def eval_part(samples: int, rank: int, world: int) -> range:
    """Return the samples that `rank` of `world` evaluates: contiguous, disjoint, together all."""
    return range(samples * rank // world, samples * (rank + 1) // world)


@dataclass(frozen=True)
class Loaders:
    """What training needs of the data.

    Attributes:
        train: training batches.
        evals: one loader for each of "val" and "test" that exists.
        prior: class names and counts of the training split.
        preprocess: what evaluation and prediction do to an image.
        quarantine: the images that were set aside since they cannot be read; the others are all there, in their order.
    """

    train: TrainLoader
    evals: dict[str, EvalLoader]
    prior: ClassPrior
    preprocess: Preprocess
    quarantine: Quarantine = field(default_factory=Quarantine)


def build_loaders(
    config: DataConfig,
    *,
    seed: int = 0,
    epochs: int = 1,
    rank: int | None = None,
    world: int | None = None,
    progress: Progress | None = None,
) -> Loaders:
    """Open the data of `config` and make its loaders.

    Args:
        config: the data settings.
        seed: of order and augmentation.
        epochs: length of the training, which some samplers need.
        rank: this process; default as the processes of this program have met.
        world: number of processes, likewise.
        progress: called with (done, total) while images are checked or decoded into memory.
    """
    return loaders_from_splits(
        open_splits(config), config, seed=seed, epochs=epochs, rank=rank, world=world, progress=progress
    )


def loaders_from_splits(
    splits: Mapping[str, ImageSource],
    config: DataConfig,
    *,
    seed: int = 0,
    epochs: int = 1,
    rank: int | None = None,
    world: int | None = None,
    progress: Progress | None = None,
) -> Loaders:
    """Make loaders of sources of your own: "train" and any further splits, all with the same class names.

    The arguments are those of `build_loaders`; the settings of `config` that say where the data is are not used.
    """
    _check_splits(splits)
    rank, world = processes.rank() if rank is None else rank, processes.world() if world is None else world
    quarantine = Quarantine()
    if config.bad_images == "quarantine":
        splits, quarantine = set_aside(splits, config, progress, shared=world > 1)
    train, total = splits["train"], sum(map(len, splits.values()))
    sampler = build_sampler(config, train.targets, train.num_classes, seed=seed, epochs=epochs, rank=rank, world=world)
    evals = {
        name: _eval_loader(source, config, rank, world, total, progress)
        for name, source in splits.items()
        if name != "train"
    }
    loader = _train_loader(train, config, sampler, seed, epochs, total, progress)
    return Loaders(loader, evals, train.prior(), Preprocess.from_config(config), quarantine)


def _train_loader(
    source: ImageSource,
    config: DataConfig,
    sampler: Sampler,
    seed: int,
    epochs: int,
    total: int,
    progress: Progress | None,
) -> TrainLoader:
    augment, sizes = build_augment(config), size_schedule(config, epochs)
    whole_batch = config.batch_size * sampler.world
    if config.repeats > whole_batch:
        raise ConfigError(
            f"data.repeats is {config.repeats}, but a batch over all processes has {whole_batch} images and would show "
            "one image only; lower data.repeats or raise data.batch_size."
        )
    images = None
    if lives_in_memory(source, config, total, full_resolution=augment.crops_full_images):
        side = stored_side(source, config.image_size, full_resolution=augment.crops_full_images)
        images = decode_all(source, side, side, config.workers, progress)
    return TrainLoader(
        source,
        sampler,
        augment,
        config.batch_size,
        seed=seed,
        workers=config.workers,
        images=images,
        mixer=_mixer(config, source.num_classes),
        sizes=sizes,
        calm_from=_calm_from(config, augment, epochs),
        unmixed_from=None if config.mix_end == 1 else first_epoch_at(config.mix_end, epochs),
    )


def _mixer(config: DataConfig, num_classes: int) -> Mixer | None:
    if config.mixup or config.cutmix:
        return Mixer(config.mixup, config.cutmix, num_classes, rate=config.mix_rate) if config.mix_rate else None
    for name in ("mix_rate", "mix_end"):
        if getattr(config, name) != 1:
            raise ConfigError(
                f"data.{name} is {getattr(config, name):g}, but nothing is mixed; set data.mixup or data.cutmix above "
                f"0, or data.{name} to 1."
            )
    return None


def _calm_from(config: DataConfig, augment: TrainAugment, epochs: int) -> int | None:
    if config.policy_end == 1:
        return None
    if augment.policy is None:
        raise ConfigError(
            f"data.policy_end is {config.policy_end:g}, but data.augment {config.augment} has no policy to end; "
            "set data.augment to autoaugment, randaugment or deit, or data.policy_end to 1."
        )
    return first_epoch_at(config.policy_end, epochs)


def _eval_loader(
    source: ImageSource, config: DataConfig, rank: int, world: int, total: int, progress: Progress | None
) -> EvalLoader:
    preprocess = Preprocess.from_config(config)
    images = None
    # Small arrays for a large model are in memory anyway: they are enlarged batch by batch instead of copied.
    enlarged = config.image_size > SMALL_IMAGE and held_smaller(source, config.image_size)
    if lives_in_memory(source, config, total) and not enlarged:
        mine = source.subset(np.asarray(eval_part(len(source), rank, world), dtype=np.int64))
        images = decode_all(mine, config.image_size, preprocess.resize, config.workers, progress)
    return EvalLoader(
        source, preprocess, config.eval_batch_size, workers=config.workers, images=images, rank=rank, world=world
    )


def _check_splits(splits: Mapping[str, ImageSource]) -> None:
    if "train" not in splits:
        raise DataError(f"there is no split 'train' among {sorted(splits)}; name one of them so.")
    for name, source in splits.items():
        if not len(source):
            raise DataError(f"split '{name}' has no samples; leave it out, or check where it is read from.")
        if source.class_names != splits["train"].class_names:
            raise DataError(
                f"split '{name}' has other class names than 'train'; give all splits the same, in one order."
            )
