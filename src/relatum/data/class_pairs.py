"""Same-class pairs: in every batch, each class that is there is there at least twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relatum.data.sampler_base import Indices, Sampler


class ClassPairsSampler(Sampler):
    """Every sample once per epoch, as nearly as pairs allow, with two samples of a class side by side.

    The samples of a class are paired at random, anew in each epoch, and the pairs are shown in random order. Of a class
    with an odd count one sample is left over: in half of the epochs it is shown with one that is shown already, in the
    others not at all, so that on average classes are seen as often as they have samples. The only sample of a class
    is therefore shown twice, as two augmented views, in half of the epochs. An epoch has N samples; one fewer if N is
    odd.

    A pair stays in one process and, with an even batch size, in one batch; over all processes a step has the same
    samples whatever their number.
    """

    name = "class-pairs"
    balances = False
    together = 2

    def __init__(self, targets: npt.ArrayLike, num_classes: int, **kwargs: int) -> None:
        super().__init__(targets, num_classes, **kwargs)
        self.size = max(len(self.targets) // 2, 1) * 2

    def order(self, epoch: int) -> Indices:
        """Return the pairs one after the other, (size,)."""
        random = self._random(epoch)
        shuffled = random.permutation(len(self.targets))
        by_class = shuffled[np.argsort(self.targets[shuffled], kind="stable")]
        members = np.split(by_class, np.cumsum(self.counts)[:-1])
        completed = set(self._completed(random).tolist())
        pairs = np.concatenate([_pairs(of_class, k in completed) for k, of_class in enumerate(members)])
        return random.permutation(pairs)[: self.size // 2].reshape(-1)

    def _completed(self, random: np.random.Generator) -> Indices:
        """Half of the classes with an odd count, at random: those that show their left-over sample in this epoch."""
        odd = random.permutation(np.flatnonzero(self.counts % 2))
        half = (len(odd) + int(random.integers(2))) // 2  # of an odd number, more or less than half by a fair coin
        return odd[: max(half, 1 - len(self.targets) // 2)]  # a single sample is all there is to show


def _pairs(members: Indices, complete: bool) -> Indices:
    """Pair the members of a class, (n,) in random order, to (n // 2, 2); `complete` pairs the last with the first."""
    if len(members) % 2:
        members = np.append(members, members[0]) if complete else members[:-1]
    return members.reshape(-1, 2)
