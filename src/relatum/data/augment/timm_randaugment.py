"""RandAugment with timm's strengths, as DeiT trains with it (`rand-m9-mstd0.5-inc1`), batched.

The same as timm's `rand_augment_transform`: the fifteen operations of its increasing set, drawn with replacement; two
per image, each happening with probability one half; the level of each drawn anew from a normal distribution around the
magnitude and clipped to 0..10; the strength of every operation at every level; a fair coin for the direction where an
operation has two; the mean colour (as timm's training transform sets it) for what comes in from outside.

Different from timm: shear, shift and turn take the nearest pixel (timm: bicubic, or a random choice of bicubic and
bilinear), so shifts are whole pixels; colours follow torchvision's arithmetic for tensors instead of Pillow's, which is
the same to within two grey levels; Posterize at level 10 keeps no bit and gives a black image, as timm meant it, where
recent versions of Pillow raise an error; the random numbers come from the caller's generator, not from global state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relatum.data.augment.operations import OPERATIONS
from relatum.data.augment.policies import Plan, apply_plan, with_signs
from relatum.errors import ConfigError

HIGHEST_LEVEL = 10
_CHOICES = torch.tensor([k for k, name in enumerate(OPERATIONS) if name != "Identity"])
_IDENTITY = OPERATIONS.index("Identity")


def timm_strengths(operations: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Return the unsigned strength of each operation at its level, in the units of `operations.strengths`.

    Each grows in severity with the level. Posterize keeps 4 bits down to none; the threshold of Solarize falls from
    256 (nothing changes) to 0; SolarizeAdd adds up to 110 grey levels.

    Args:
        operations: positions in `OPERATIONS`, of any shape, int64.
        levels: 0 to 10, of the same shape, float64.
        height: of the images.
        width: of the images.

    Returns:
        Of the same shape, float64.
    """
    share = levels / HIGHEST_LEVEL
    result = share * _reaches(height, width)[operations]
    # Whole numbers: the products are cut, not rounded, exactly as timm does it.
    whole = {
        "TranslateX": result.round(),
        "TranslateY": result.round(),
        "Posterize": 4 - (share * 4).trunc(),
        "Solarize": (256 - (share * 256).trunc()) / 255,
        "SolarizeAdd": (share * 110).trunc(),
    }
    for name, values in whole.items():
        result = torch.where(operations == OPERATIONS.index(name), values, result)
    return result


def _reaches(height: int, width: int) -> Tensor:
    """Return the strength at the highest level of the operations that are proportional to it, 0 for others."""
    largest = {"ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45 * width, "TranslateY": 0.45 * height, "Rotate": 30.0}
    largest |= dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9)
    return torch.tensor([largest.get(name, 0.0) for name in OPERATIONS], dtype=torch.float64)


@dataclass(frozen=True)
class TimmRandAugment:
    """Operations of timm's increasing set; see the head of this file for what equals timm and what does not.

    Args:
        magnitude: mean level, 0 to 10; DeiT: 9.
        passes: operations per image.
        chance: probability with which each of them happens.
        spread: standard deviation of the level.
        fill: colour of what shear, shift and turn bring in from outside; default the ImageNet mean.
    """

    magnitude: float = 9.0
    passes: int = 2
    chance: float = 0.5
    spread: float = 0.5
    fill: tuple[int, ...] = (124, 116, 104)

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= HIGHEST_LEVEL:
            raise ConfigError(
                f"data.magnitude is {self.magnitude}, but the scale of augment 'deit' is timm's, 0 to {HIGHEST_LEVEL}; "
                "set data.magnitude to 9 as in DeiT, or use augment 'randaugment', whose scale is 0 to 30."
            )

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> Plan:
        """Choose for `n` images of the given size."""
        shape = (n, self.passes)
        operations = _CHOICES[torch.randint(len(_CHOICES), shape, generator=generator)]
        happens = torch.rand(shape, generator=generator) < self.chance
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        levels = (self.magnitude + self.spread * noise).clamp_(0, HIGHEST_LEVEL)
        operations = torch.where(happens, operations, _IDENTITY)
        return with_signs(operations, timm_strengths(operations, levels, height, width), generator)

    def apply(self, images: Tensor, plan: Plan) -> Tensor:
        """Apply the choices to (N, 3, H, W) uint8 images."""
        return apply_plan(images, plan, torch.tensor(self.fill, dtype=torch.uint8))
