"""Progressive resolution: the first epochs on smaller images, which cost a fraction, the last ones in full size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from relatum.batch import Batch
from relatum.config import DataConfig
from relatum.data.augment.resize import resize_whole
from relatum.errors import ConfigError

# Shares such as 0.07 are not exact in binary: 0.07 x 100 is a little more than 7 and would act an epoch late.
_ROUNDING = 1e-9


def first_epoch_at(share: float, epochs: int) -> int:
    """Return the first epoch, counted from 0, that begins with `share` of the epochs done or more."""
    return math.ceil(share * epochs - _ROUNDING)


@dataclass(frozen=True)
class SizeSchedule:
    """Which side training images have in which epoch.

    Args:
        sizes: sides, in the order in which they are shown.
        ends: share of the epochs at which each of them ends; the last is 1.
        epochs: length of the training.
    """

    sizes: tuple[int, ...]
    ends: tuple[float, ...]
    epochs: int

    def at(self, epoch: int) -> int:
        """Return the side of the images in `epoch`, counted from 0."""
        passed = sum(epoch >= first_epoch_at(end, self.epochs) for end in self.ends[:-1])
        return self.sizes[passed]

    def shares(self) -> dict[int, float]:
        """Return the first epoch of each side that is shown, and the side's share of the epochs."""
        sides = [self.at(epoch) for epoch in range(self.epochs)]
        return {sides.index(side): sides.count(side) / self.epochs for side in dict.fromkeys(sides)}

    def work(self, epochs: float) -> float:
        """Return the pixels of the first `epochs` epochs, in epochs of the largest images."""
        changes = [first_epoch_at(end, self.epochs) for end in self.ends[:-1]]
        stages = zip(self.sizes, [0, *changes], [*changes, math.inf], strict=True)
        full = max(self.sizes)
        return sum((side / full) ** 2 * (min(epochs, end) - min(epochs, start)) for side, start, end in stages)

    def shrink(self, batch: Batch, epoch: int) -> Batch:
        """Return `batch` with its images at the side of `epoch`; one that has this side already stays as it is."""
        side = self.at(epoch)
        if batch.inputs.shape[-1] == side:
            return batch
        return replace(batch, inputs=resize_whole(batch.inputs, side))


def size_schedule(config: DataConfig, epochs: int) -> SizeSchedule | None:
    """Return the schedule that `data.sizes` and `data.size_ends` ask for, or None where all images have one size.

    Raises:
        ConfigError: sides or shares that do not fit together.
    """
    sizes, ends = config.sizes, config.size_ends
    if not sizes:
        if ends:
            raise ConfigError("data.size_ends says when each of data.sizes ends, and there are none; set both or none.")
        return None
    if any(size < 8 or size > config.image_size for size in sizes):
        raise ConfigError(
            f"data.sizes are sides of 8 to data.image_size ({config.image_size}) pixels, not {_listed(sizes)}."
        )
    ends = ends or tuple((number + 1) / len(sizes) for number in range(len(sizes)))
    if len(ends) != len(sizes) or ends[-1] != 1 or list(ends) != sorted(set(ends)) or ends[0] <= 0:
        raise ConfigError(
            f"data.size_ends has a rising share of the epochs for each of the {len(sizes)} data.sizes, the last of "
            f"them 1, for example {_listed(tuple(round((n + 1) / len(sizes), 2) for n in range(len(sizes))))}; "
            f"not {_listed(ends)}."
        )
    return SizeSchedule(sizes, ends, epochs)


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)
