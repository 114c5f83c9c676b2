"""The thing that flows from data to the task."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A mini-batch.

    Args:
        inputs: images ready for the model, (N, 3, H, W).
        targets: class ids (N,) int64, or soft targets (N, K) float whose rows sum to one.
        index: position of each sample in its source, (N,) int64.
        domain: optional domain id of each sample, (N,) int64.
        mask: optional per-sample mask, (N, ...).
    """

    inputs: Tensor
    targets: Tensor
    index: Tensor
    domain: Tensor | None = None
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str, *, channels_last: bool = False) -> Batch:
        """Return the batch on `device`, its images in channels-last memory order when asked."""
        layout = torch.channels_last if channels_last and self.inputs.ndim == 4 else torch.preserve_format
        return replace(
            self,
            inputs=self.inputs.to(device, memory_format=layout, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            index=self.index.to(device, non_blocking=True),
            domain=None if self.domain is None else self.domain.to(device),
            mask=None if self.mask is None else self.mask.to(device),
        )
