"""Samplers: how often and in which order the training samples are seen."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from relatum.config import DataConfig
from relatum.data.sampler_base import ClassWeightedSampler, Indices, Sampler, Weights
from relatum.errors import ConfigError, suggest


class InstanceSampler(Sampler):
    """Every sample once per epoch, in random order."""

    name = "instance"
    balances = False

    def order(self, epoch: int) -> Indices:
        """Return a permutation of all samples, (N,)."""
        return self._random(epoch).permutation(self.size)


class ClassBalancedSampler(ClassWeightedSampler):
    """All classes equally often."""

    name = "class-balanced"

    def class_probabilities(self, epoch: int) -> Weights:
        """Return 1 / (number of classes that have samples)."""
        return _normalised(self.counts > 0)


class SquareRootSampler(ClassWeightedSampler):
    """Classes in proportion to the square root of their counts."""

    name = "square-root"

    def class_probabilities(self, epoch: int) -> Weights:
        """Return sqrt(n_c), normalised."""
        return _normalised(np.sqrt(self.counts))


class ProgressiveSampler(ClassWeightedSampler):
    """From instance sampling in the first epoch to class-balanced sampling in the last, linearly.

    A training of a single epoch is instance sampling.
    """

    name = "progressive"

    def class_probabilities(self, epoch: int) -> Weights:
        """Return (1 - t/T) · instance + t/T · class-balanced, with t the epoch and T the last one."""
        share = min(epoch / (self.epochs - 1), 1.0) if self.epochs > 1 else 0.0
        return (1 - share) * _normalised(self.counts) + share * _normalised(self.counts > 0)


class EffectiveNumberSampler(ClassWeightedSampler):
    """Samples in proportion to the inverse effective number of their class.

    Args:
        beta: in [0, 1); 0 is instance sampling, towards 1 it becomes class-balanced.
        **kwargs: as for `Sampler`.
    """

    name = "effective-number"

    def __init__(self, targets: npt.ArrayLike, num_classes: int, *, beta: float = 0.9999, **kwargs: int) -> None:
        super().__init__(targets, num_classes, **kwargs)
        if not 0 <= beta < 1:
            raise ConfigError(f"beta {beta} of effective-number sampling must be at least 0 and below 1.")
        self.beta = beta

    def class_probabilities(self, epoch: int) -> Weights:
        """Return n_c · (1 - beta) / (1 - beta^n_c), normalised."""
        counts = self.counts.astype(np.float64)
        effective = (1 - self.beta ** np.maximum(counts, 1)) / (1 - self.beta)
        return _normalised(counts / effective)


class RepeatFactorSampler(Sampler):
    """Every sample at least once; samples of rare classes r_c = max(1, sqrt(t / f_c)) times, f_c the class frequency.

    Fractions are rounded up or down at random, anew in each epoch, so that each sample is repeated r_c times on average
    and the length of the epoch stays the same.

    Args:
        threshold: t, the frequency below which a class is repeated. Default 1 / (number of classes that have samples),
            the share of a class in balanced data: classes above it are left alone. (LVIS uses 0.001 at 1203 classes.)
        **kwargs: as for `Sampler`.
    """

    name = "repeat-factor"

    def __init__(
        self, targets: npt.ArrayLike, num_classes: int, *, threshold: float | None = None, **kwargs: int
    ) -> None:
        super().__init__(targets, num_classes, **kwargs)
        if threshold is None:
            threshold = 1.0 / np.count_nonzero(self.counts)
        if threshold <= 0:
            raise ConfigError(f"threshold {threshold} of repeat-factor sampling must be positive.")
        frequency = np.maximum(self.counts, 1) / len(self.targets)
        self.repeats: Weights = np.maximum(1.0, np.sqrt(threshold / frequency))
        self.size = int(np.ceil((self.repeats * self.counts).sum() - 1e-9))

    def order(self, epoch: int) -> Indices:
        """Return the repeated samples in random order, (size,)."""
        random = self._random(epoch)
        samples = random.permutation(len(self.targets))
        fraction, whole = np.modf(self.repeats[self.targets[samples]])
        # Systematic rounding: walk along the cumulative fractions and mark the samples at which a whole number is
        # passed. Each is rounded up with the probability of its fraction, and the total is fixed to within one.
        passed = np.floor(np.cumsum(fraction) + random.random())
        times = (whole + np.diff(passed, prepend=0)).astype(np.int64)
        return np.resize(random.permutation(np.repeat(samples, times)), self.size)


class Deferred(Sampler):
    """Deferred re-sampling: `first`, then from epoch `start` · `epochs` on `then`.

    Args:
        first: sampler of the early epochs.
        then: sampler of the late epochs; same samples, ranks and size.
        start: share of the epochs after which to switch, in [0, 1].
        epochs: length of the training.
    """

    name = "deferred"

    def __init__(self, first: Sampler, then: Sampler, start: float, epochs: int) -> None:
        if (first.size, first.rank, first.world) != (then.size, then.rank, then.world):
            raise ConfigError("deferred re-sampling needs two samplers of the same size, rank and number of processes.")
        super().__init__(
            first.targets,
            first.num_classes,
            seed=first.seed,
            epochs=epochs,
            rank=first.rank,
            world=first.world,
            views=first.views,
        )
        self.first, self.then, self.start, self.size = first, then, start, first.size

    def order(self, epoch: int) -> Indices:
        """Return the order of the sampler whose turn it is, (size,)."""
        late = epoch >= self.start * self.epochs - 1e-9
        return (self.then if late else self.first).order(epoch)


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler
    for sampler in (
        InstanceSampler,
        ClassBalancedSampler,
        SquareRootSampler,
        ProgressiveSampler,
        EffectiveNumberSampler,
        RepeatFactorSampler,
    )
}


def build_sampler(
    config: DataConfig,
    targets: npt.ArrayLike,
    num_classes: int,
    *,
    seed: int = 0,
    epochs: int = 1,
    rank: int = 0,
    world: int = 1,
) -> Sampler:
    """Make the sampler that `config.sampler`, `config.drs_start` and `config.repeats` ask for."""
    if config.sampler not in SAMPLERS:
        raise ConfigError(f"unknown sampler '{config.sampler}'; {suggest(config.sampler, SAMPLERS)}")
    settings = {"seed": seed, "epochs": epochs, "rank": rank, "world": world, "views": config.repeats}
    first = SAMPLERS[config.sampler](targets, num_classes, **settings)
    if config.drs_start >= 1:
        return first
    then = ClassBalancedSampler(targets, num_classes, **settings)
    then.size = first.size  # repeat-factor epochs are longer; the number of steps must not change at the switch
    return Deferred(first, then, config.drs_start, epochs)


def warn_double_correction(sampler_name: str, objective_corrects: bool, allow_double: bool = False) -> None:
    """Warn when a balancing sampler meets an objective that corrects for the class frequencies as well.

    Args:
        sampler_name: `Sampler.name`; "deferred" counts as balancing.
        objective_corrects: whether the objective uses the class counts.
        allow_double: the user wants it so.
    """
    balances = SAMPLERS[sampler_name].balances if sampler_name in SAMPLERS else sampler_name == Deferred.name
    if balances and objective_corrects and not allow_double:
        warnings.warn(
            f"double correction: the {sampler_name} sampler already shows rare classes more often, and the objective "
            "corrects for the class frequencies again; frequent classes will suffer. Use the instance sampler, or a "
            "plain objective, or set data.allow_double if this is what you want.",
            UserWarning,
            stacklevel=2,
        )


def _normalised(weights: npt.ArrayLike) -> Weights:
    values = np.asarray(weights, dtype=np.float64)
    return values / values.sum()
