"""The settings of training data, without what training adds to the images."""

from __future__ import annotations

from dataclasses import replace

from relatum.config import DataConfig


def without_mixing(data: DataConfig) -> DataConfig:
    """Return the same data with neither mixup nor cutmix."""
    return replace(data, mixup=0.0, cutmix=0.0, mix_rate=1.0, mix_end=1.0)


def as_evaluated(data: DataConfig) -> DataConfig:
    """Return the same data with its training images as they are: each once, neither augmented nor mixed."""
    return replace(without_mixing(data), augment="none", policy_end=1.0, erasing=0.0, cutout=0, repeats=1)
