"""What all classifier tools share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import nn

from relatum.classifier.features import CachedFeatures


class ClassifierTool(ABC):
    """Settings of a method that makes a new classifier of a trained one; subclasses are frozen dataclasses.

    Attributes:
        name: what the command line calls it.
        foldable: whether the new classifier is a linear layer again, see `relatum.classifier.fold`.
        open_setting: the setting that is chosen on held-out features while it is None; "" if there is none.
    """

    name: ClassVar[str] = ""
    foldable: ClassVar[bool] = True
    open_setting: ClassVar[str] = ""

    def tuned(self, features: CachedFeatures, head: nn.Module) -> Self:
        """Return the same tool without open settings: those are chosen on `features.held`."""
        return self

    @abstractmethod
    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Module:
        """Return a new classifier (N, C) -> (N, K) on the CPU; `head` is not changed.

        Args:
            features: of the model that `head` belongs to.
            head: its linear classifier.
            seed: of initial weights and sample order.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return words for the record, such as "tau-normalised classifier (tau 0.7)"."""
