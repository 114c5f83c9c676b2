"""Which operations an image gets: AutoAugment's CIFAR-10 policy and RandAugment, batched.

timm and torchvision have both policies, but for one image (or one choice for a whole batch) at a time; here each image
of a batch has its own choice. Choices and strengths follow torchvision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from relatum.data.augment.operations import OPERATIONS, SIGNED, apply_operations, strengths

SubPolicy = tuple[tuple[str, float, int], tuple[str, float, int]]

# (operation, probability, level of ten) twice; a level of operations without strength is written 0.
CIFAR10_POLICY: tuple[SubPolicy, ...] = (
    (("Invert", 0.1, 0), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 0), ("Equalize", 0.9, 0)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 0), ("Equalize", 0.5, 0)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 0), ("AutoContrast", 0.4, 0)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 0)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 0), ("Equalize", 0.6, 0)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 0)),
    (("AutoContrast", 0.8, 0), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 0)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 0), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 0), ("Invert", 0.1, 0)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0)),
)


class Plan(NamedTuple):
    """What happens to each image: P operations in turn.

    Attributes:
        operations: positions in `OPERATIONS`, (N, P) int64; 0 is Identity.
        magnitudes: signed strengths, (N, P) float64.
    """

    operations: Tensor
    magnitudes: Tensor


def apply_plan(images: Tensor, plan: Plan, fill: Tensor | None = None) -> Tensor:
    """Apply the operations of `plan` to (N, 3, H, W) uint8 images, pass by pass; `fill` as in `apply_operations`."""
    for operations, magnitudes in zip(plan.operations.T, plan.magnitudes.T, strict=True):
        images = apply_operations(images, operations.contiguous(), magnitudes.contiguous(), fill)
    return images


def with_signs(operations: Tensor, magnitudes: Tensor, generator: torch.Generator) -> Plan:
    """Turn the strengths of operations that have two directions around with probability one half."""
    negative = torch.rand(operations.shape, generator=generator) < 0.5
    return Plan(operations, torch.where(negative & SIGNED[operations], -magnitudes, magnitudes))


@dataclass(frozen=True)
class AutoAugment:
    """One of the 25 published pairs of operations per image, each operation with its probability."""

    policy: tuple[SubPolicy, ...] = CIFAR10_POLICY
    _operations: Tensor = field(init=False, repr=False, compare=False)
    _chances: Tensor = field(init=False, repr=False, compare=False)
    _levels: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        operations = [[OPERATIONS.index(name) for name, _, _ in pair] for pair in self.policy]
        object.__setattr__(self, "_operations", torch.tensor(operations))
        object.__setattr__(self, "_chances", torch.tensor([[chance for _, chance, _ in pair] for pair in self.policy]))
        object.__setattr__(self, "_levels", torch.tensor([[level for _, _, level in pair] for pair in self.policy]))

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Plan:
        """Choose for `n` images of the given size."""
        chosen = torch.randint(len(self.policy), (n,), generator=generator)
        happens = torch.rand((n, 2), generator=generator) < self._chances[chosen]
        operations = self._operations[chosen] * happens
        magnitudes = strengths(10, height, width)[operations, self._levels[chosen]]
        return with_signs(operations, magnitudes, generator)

    def apply(self, images: Tensor, plan: Plan) -> Tensor:
        """Apply the choices to (N, 3, H, W) uint8 images."""
        return apply_plan(images, plan)


@dataclass(frozen=True)
class RandAugment:
    """`passes` operations per image, each uniform over torchvision's (no Invert), at level `magnitude` of 0 to 30."""

    magnitude: int = 9
    passes: int = 2

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Plan:
        """Choose for `n` images of the given size."""
        operations = torch.randint(OPERATIONS.index("Invert"), (n, self.passes), generator=generator)
        magnitudes = strengths(31, height, width)[operations, self.magnitude]
        return with_signs(operations, magnitudes, generator)

    def apply(self, images: Tensor, plan: Plan) -> Tensor:
        """Apply the choices to (N, 3, H, W) uint8 images."""
        return apply_plan(images, plan)
