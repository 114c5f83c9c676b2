"""ClassPrior: how often each class was seen. It flows to samplers, objectives and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relatum.errors import ConfigError, DataError, suggest

GROUPS = ("many", "medium", "few")

# Published boundaries between the shot groups; a class count n decides, except where class positions do.
_COUNT_RULES = {
    "standard": lambda n: np.where(n > 100, 0, np.where(n < 20, 2, 1)),
    "oltr": lambda n: np.where(n >= 100, 0, np.where(n <= 20, 2, 1)),
}
_POSITION_RULES = {"mislas": (36, 71), "prior-lt": (33, 66), "cifar10": (3, 7)}
_POSITION_CLASSES = {"mislas": 100, "prior-lt": 100, "cifar10": 10}
SHOT_RULES = (*_COUNT_RULES, *_POSITION_RULES, "thirds")


@dataclass(frozen=True)
class ShotGroups:
    """Which classes are many-, medium- and few-shot under a named rule.

    Args:
        rule: one of `SHOT_RULES`. `standard`: many > 100, few < 20 training images. `oltr`: many >= 100, few <= 20.
            `mislas`, `prior-lt`, `cifar10`: fixed class positions. `thirds`: equal thirds of the classes by count,
            for small data sets in which every class would be "few".
        group: 0 (many), 1 (medium) or 2 (few) for each class, (K,).
    """

    rule: str
    group: npt.NDArray[np.int64]

    def classes(self, name: str) -> npt.NDArray[np.int64]:
        """Return the ids of the classes in group `name`; may be empty."""
        return np.flatnonzero(self.group == GROUPS.index(name))

    def sizes(self) -> dict[str, int]:
        """Return the number of classes in each group."""
        return {name: len(self.classes(name)) for name in GROUPS}


class ClassPrior:
    """Training frequencies of the classes, and what follows from them.

    A class without training samples is defined: wherever a logarithm, a quotient or a power of its count is needed it
    counts as one sample (`safe_counts`), and it belongs to the few-shot group of the count-based rules.

    Args:
        counts: training samples per class, (K,), or a mapping from class name to count.
        names: class names; default the keys of the mapping, else "0", "1", ...
        test_prior: class frequencies expected at test, (K,); normalised here. Default uniform.
    """

    def __init__(
        self,
        counts: Sequence[int] | npt.NDArray[Any] | Mapping[str, int],
        names: Sequence[str] | None = None,
        test_prior: Sequence[float] | npt.NDArray[Any] | None = None,
    ) -> None:
        if isinstance(counts, Mapping):
            names = tuple(counts) if names is None else names
            counts = list(counts.values())
        self.counts = _checked_counts(counts)
        self.names = tuple(str(k) for k in range(len(self.counts))) if names is None else tuple(names)
        if len(self.names) != len(self.counts):
            raise DataError(f"ClassPrior: {len(self.names)} class names for {len(self.counts)} counts; give one each.")
        self.test_prior = _checked_test_prior(test_prior, len(self.counts))

    @classmethod
    def from_targets(
        cls, targets: npt.ArrayLike, num_classes: int | None = None, names: Sequence[str] | None = None
    ) -> ClassPrior:
        """Count integer `targets` (N,); `num_classes` or `names` fixes K where classes may be absent."""
        labels = np.asarray(targets)
        if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iub"):
            raise DataError(f"targets must be one class id per sample, not {labels.dtype} of shape {labels.shape}.")
        size = num_classes if num_classes is not None else len(names) if names is not None else None
        low, high = (int(labels.min()), int(labels.max())) if labels.size else (0, -1)
        if low < 0 or (size is not None and high >= size):
            valid = "; labels are 0 or more" if size is None else f" for {size} classes; labels must be 0 to {size - 1}"
            raise DataError(f"label {low if low < 0 else high} is out of range{valid}.")
        return cls(np.bincount(labels.astype(np.int64), minlength=size or 0), names)

    @property
    def num_classes(self) -> int:
        """K, the number of classes."""
        return len(self.counts)

    @property
    def safe_counts(self) -> npt.NDArray[np.float64]:
        """Counts with zero replaced by one, (K,) float64."""
        return np.maximum(self.counts, 1).astype(np.float64)

    @property
    def train_prior(self) -> npt.NDArray[np.float64]:
        """Class probabilities in training from `safe_counts`, (K,) float64, sums to one."""
        return self.safe_counts / self.safe_counts.sum()

    @property
    def log_prior(self) -> npt.NDArray[np.float64]:
        """Natural logarithm of `train_prior`; always finite."""
        return np.log(self.train_prior)

    @property
    def imbalance(self) -> float:
        """Largest count over the smallest non-zero count; 1.0 is balanced."""
        present = self.counts[self.counts > 0]
        return float(present.max() / present.min())

    def shot_groups(self, rule: str = "standard") -> ShotGroups:
        """Divide the classes into many, medium and few under `rule` (see `ShotGroups`)."""
        k = self.num_classes
        if rule in _COUNT_RULES:
            group = _COUNT_RULES[rule](self.counts)
        elif rule in _POSITION_RULES:
            if k != _POSITION_CLASSES[rule]:
                raise ConfigError(f"shot rule '{rule}' is defined for {_POSITION_CLASSES[rule]} classes, not for {k}.")
            group = np.searchsorted(_POSITION_RULES[rule], np.arange(k), side="right")
        elif rule == "thirds":
            rank = np.empty(k, dtype=np.int64)
            rank[np.argsort(-self.counts, kind="stable")] = np.arange(k)
            group = rank * 3 // k
        else:
            raise ConfigError(f"unknown shot rule '{rule}'; {suggest(rule, SHOT_RULES)}")
        return ShotGroups(rule, group.astype(np.int64))

    def __repr__(self) -> str:
        return (
            f"ClassPrior(classes={self.num_classes}, samples={int(self.counts.sum())}, imbalance={self.imbalance:.4g})"
        )


def _checked_counts(counts: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    try:
        values = np.asarray(counts)
    except ValueError as error:  # lists of unequal lengths
        raise DataError("class counts must be whole numbers, one per class.") from error
    if values.ndim != 1 or values.size == 0:
        raise DataError(f"class counts must be a list of one number per class, not of shape {values.shape}.")
    if values.dtype.kind not in "iubf" or not np.all(np.isfinite(values)):
        raise DataError(f"class counts must be whole numbers, not {values.tolist()[:5]}.")
    if np.any(values < 0) or np.any(values != np.floor(values)):
        raise DataError("class counts must be whole numbers of zero or more.")
    if values.sum() == 0:
        raise DataError("all class counts are zero; there is nothing to learn from.")
    return values.astype(np.int64)


def _checked_test_prior(test_prior: Sequence[float] | npt.NDArray[Any] | None, k: int) -> npt.NDArray[np.float64]:
    if test_prior is None:
        return np.full(k, 1.0 / k)
    values = np.asarray(test_prior, dtype=np.float64)
    if values.shape != (k,) or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise DataError(f"test prior must hold {k} positive numbers, one per class.")
    return values / values.sum()
