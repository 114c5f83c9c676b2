"""Augmentation: every operation once, batched over uint8 images, with one set of random parameters per image."""

from relatum.data.augment.colour import ColorJitter
from relatum.data.augment.geometric import HorizontalFlip, PadCrop, RandomResizedCrop
from relatum.data.augment.mixing import Mixer
from relatum.data.augment.occlusion import Cutout, RandomErasing
from relatum.data.augment.pipeline import TrainAugment, build_augment
from relatum.data.augment.policies import AutoAugment, RandAugment
from relatum.data.augment.timm_randaugment import TimmRandAugment

__all__ = [
    "AutoAugment",
    "ColorJitter",
    "Cutout",
    "HorizontalFlip",
    "Mixer",
    "PadCrop",
    "RandAugment",
    "RandomErasing",
    "RandomResizedCrop",
    "TimmRandAugment",
    "TrainAugment",
    "build_augment",
]
