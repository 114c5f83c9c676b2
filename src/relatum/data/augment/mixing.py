"""Two images in one: mixup and cutmix on a batch, with soft targets.

timm's `Mixup` does the same for even batches only (it asserts) and draws from numpy's global state, so its mixing is
neither seeded by the run nor repeated after a resume. Hence this one: any batch size, an explicit generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from relatum.batch import Batch
from relatum.errors import ConfigError


@dataclass(frozen=True)
class Mixer:
    """Mix each sample of a batch with a partner from the same batch; one ratio per batch.

    Args:
        mixup_alpha: the share of the sample itself is drawn from Beta(alpha, alpha); 0 is off.
        cutmix_alpha: the same for cutmix; 0 is off. With both on, a fair coin decides per batch.
        num_classes: K, the width of the soft targets.
        label_smoothing: share of each target spread evenly over all classes.
        rate: share of the batches that are mixed; the others keep their class ids.
    """

    mixup_alpha: float
    cutmix_alpha: float
    num_classes: int
    label_smoothing: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if min(self.mixup_alpha, self.cutmix_alpha) < 0 or max(self.mixup_alpha, self.cutmix_alpha) == 0:
            raise ConfigError(
                "Mixer needs mixup_alpha or cutmix_alpha above 0 (and none below); without, leave it out."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be at least 0 and below 1, not {self.label_smoothing}.")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"rate must be above 0 and at most 1, not {self.rate}; without mixing, leave Mixer out.")

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the mixed batch: inputs (N, 3, H, W), soft targets (N, K), partners by a random permutation.

        With a `rate` below 1, some batches are returned as they came.
        """
        if self.rate < 1 and float(torch.rand((), generator=generator)) >= self.rate:
            return batch
        partner = torch.randperm(len(batch), generator=generator)
        cutmix = self.mixup_alpha == 0 or (self.cutmix_alpha > 0 and bool(torch.rand((), generator=generator) < 0.5))
        share = _beta(self.cutmix_alpha if cutmix else self.mixup_alpha, generator)
        if cutmix:
            inputs, share = _cutmix(batch.inputs, partner, share, generator)
        else:
            inputs = torch.lerp(batch.inputs.index_select(0, partner), batch.inputs, share)
        soft = self.soften(batch.targets)
        return replace(batch, inputs=inputs, targets=share * soft + (1.0 - share) * soft[partner])

    def soften(self, targets: Tensor) -> Tensor:
        """Return soft targets (N, K) of class ids (N,), or of targets that are soft already."""
        soft = functional.one_hot(targets, self.num_classes).float() if targets.ndim == 1 else targets
        return soft * (1.0 - self.label_smoothing) + self.label_smoothing / self.num_classes


def _beta(alpha: float, generator: torch.Generator) -> float:
    """Draw from Beta(alpha, alpha). torch's own Beta takes no generator; numpy's is seeded from ours."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def _cutmix(inputs: Tensor, partner: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """Paste a box of area 1 - share from the partner; its centre is uniform, so borders may cut it.

    Returns:
        The images and the share of each image that is truly its own.
    """
    h, w = inputs.shape[-2:]
    side = math.sqrt(1.0 - share)
    top, bottom = _span(int(h * side), h, generator)
    left, right = _span(int(w * side), w, generator)
    mixed = inputs.clone()
    mixed[..., top:bottom, left:right] = inputs[..., top:bottom, left:right].index_select(0, partner)
    return mixed, 1.0 - (bottom - top) * (right - left) / (h * w)


def _span(length: int, size: int, generator: torch.Generator) -> tuple[int, int]:
    start = int(torch.randint(size, (), generator=generator)) - length // 2
    return max(start, 0), min(start + length, size)
