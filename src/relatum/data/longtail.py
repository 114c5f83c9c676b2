"""Cut a training set to a long tail, or to equal classes: how many images each class keeps, and which."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from relatum.data.source import ImageSource
from relatum.errors import ConfigError, DataError, suggest

PROFILES = ("exponential", "step", "pareto", "balanced")
PARETO_POWER = 6.0  # of ImageNet-LT
# Counts are truncated; the nudge keeps 5 at 5 where floating point says 4.999999999.
_NUDGE = 1e-9

Source = TypeVar("Source", bound=ImageSource)


def long_tail_counts(profile: str, num_classes: int, largest: int, imbalance: float) -> npt.NDArray[np.int64]:
    """Return the images per class of a profile, (K,), from class 0 (the head) down; at least one each.

    With C classes, n the largest count, f the imbalance, k = 0 ... C - 1, and truncation to whole numbers:

    * exponential (CIFAR-LT): n · (1/f)^(k / (C - 1)).
    * step: n for the first half of the classes (the middle one included), n / f for the others.
    * pareto (the shape of ImageNet-LT): n/f + (n - n/f) · q_k / q_0 with q_k = ((k + 1) / C)^(-1/6) - 1, the
      quantiles of a Pareto distribution of power 6 that starts at zero. At C = 1000, n = 1280, f = 256 every tenth
      rank lies close to ImageNet-LT's; the published list itself is a random draw and remains the one to compare on.
    * balanced (ImageNet-BAL): n for every class; f plays no part.

    Args:
        profile: one of `PROFILES`.
        num_classes: C.
        largest: n, at least 1.
        imbalance: f, at least 1.
    """
    if num_classes < 1 or largest < 1:
        raise ConfigError(f"a long tail needs at least one class and one image, not {num_classes} and {largest}.")
    if not (np.isfinite(imbalance) and imbalance >= 1):
        raise ConfigError(f"imbalance {imbalance} is not a ratio of largest to smallest class; give a number >= 1.")
    if profile not in PROFILES:
        raise ConfigError(f"unknown long-tail profile '{profile}'; {suggest(profile, PROFILES)}")
    place = np.arange(num_classes)
    last = max(num_classes - 1, 1)
    smallest = largest / imbalance
    if profile == "exponential":
        wanted = largest * (1.0 / imbalance) ** (place / last)
    elif profile == "balanced":
        wanted = np.full(num_classes, float(largest))
    elif profile == "step":
        wanted = np.where(place < num_classes - num_classes // 2, largest, smallest)
    else:
        quantile = ((place + 1) / num_classes) ** (-1.0 / PARETO_POWER) - 1.0
        head = quantile[0] if num_classes > 1 else 1.0
        wanted = smallest + (largest - smallest) * quantile / head
        wanted[0] = largest
    return np.maximum(np.floor(wanted * (1 + _NUDGE)).astype(np.int64), 1)


def make_long_tailed(
    source: Source,
    profile: str,
    imbalance: float,
    largest: int = 0,
    choice: Literal["seeded", "first"] = "seeded",
    seed: int = 0,
) -> Source:
    """Return the part of `source` that follows a profile, in file order, class ids unchanged.

    Classes keep their natural order: class 0 is the head. The draw of a class does not depend on the imbalance, so a
    stronger imbalance is a subset of a weaker one. `choice="seeded"` with seed 0 shuffles as the published CIFAR-LT
    code does (NumPy's legacy generator, classes in order), hence picks its images from the official files.

    The balanced profile is the equal in size of a long-tailed set, to compare on: the LiVT paper's text has 116 images
    of each class of ImageNet, about as many in all as ImageNet-LT; its released script keeps 160, in directory order.
    The draw is that of the long tails, so both share their images as far as the counts allow.

    Args:
        source: training images, balanced or not.
        profile: "none", or one of `PROFILES`.
        imbalance: largest over smallest count; balanced has none.
        largest: count of class 0, of every class if balanced; 0 takes that of the largest class in `source`, of the
            smallest if balanced.
        choice: "seeded" draws the images of each class, "first" takes the first in file order.
        seed: seed of that draw.

    Raises:
        DataError: a class has fewer images than the profile asks for.
    """
    if profile == "none":
        return source
    if choice not in ("seeded", "first"):
        raise ConfigError(f"unknown choice '{choice}'; {suggest(choice, ('seeded', 'first'))}")
    present = np.bincount(source.targets, minlength=source.num_classes)
    most = int(present.min() if profile == "balanced" else present.max())
    largest = largest or max(most, 1)
    counts = long_tail_counts(profile, source.num_classes, largest, imbalance)
    _check_enough(source, profile, imbalance, counts, present)
    random = np.random.RandomState(seed)
    kept = []
    for members, count in zip(source.members(), counts, strict=True):
        if choice == "seeded":
            random.shuffle(members)
        kept.append(members[:count])
    return source.subset(np.sort(np.concatenate(kept)))


def _check_enough(
    source: ImageSource,
    profile: str,
    imbalance: float,
    counts: npt.NDArray[np.int64],
    present: npt.NDArray[np.int64],
) -> None:
    short = np.flatnonzero(counts > present)
    if not short.size:
        return
    k = int(short[0])
    best = _largest_that_fits(profile, imbalance, present)
    cure = f"set largest to {best} or less" if best else "add images of this class, or leave it out of the data"
    balanced = profile == "balanced"
    with_what = "" if balanced else f" with largest {int(counts[0])} and imbalance {imbalance:g}"
    order = "Every class keeps as many." if balanced else "Classes keep their order: class 0 is the largest."
    raise DataError(
        f"{source.name}: class {k} ('{source.class_names[k]}') has {int(present[k])} images, but the {profile} profile"
        f"{with_what} wants {int(counts[k])}; {cure}. {order}"
    )


def _largest_that_fits(profile: str, imbalance: float, present: npt.NDArray[np.int64]) -> int:
    low, high = 0, int(present[0])
    while low < high:
        middle = (low + high + 1) // 2
        if np.all(long_tail_counts(profile, len(present), middle, imbalance) <= present):
            low = middle
        else:
            high = middle - 1
    return low
