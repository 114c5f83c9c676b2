"""The operations that AutoAugment and RandAugment choose from: their strengths, and one pass of them over a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from relatum.data.augment import colour
from relatum.data.augment.geometric import affine

# The geometric operations stand together: sorted by operation, their images are one slice and need one gather.
OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
    "SolarizeAdd",
)
SIGNED = torch.tensor([1 <= k <= 9 for k in range(len(OPERATIONS))])
_FIRST_COLOUR = OPERATIONS.index("Brightness")

_COLOUR: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda images, m: colour.brightness(images, 1.0 + m),
    lambda images, m: colour.saturation(images, 1.0 + m),
    lambda images, m: colour.contrast(images, 1.0 + m),
    lambda images, m: colour.sharpness(images, 1.0 + m),
    colour.posterize,
    lambda images, m: colour.solarize(images, 255.0 * m),
    lambda images, m: colour.autocontrast(images),
    lambda images, m: colour.equalize(images),
    lambda images, m: colour.invert(images),
    colour.solarize_add,
)


@lru_cache(maxsize=32)
def strengths(bins: int, height: int, width: int) -> Tensor:
    """Return torchvision's unsigned strength of every operation at every level, (operations, bins) float64.

    Shear is a slope, translation is in pixels, rotation in degrees; the factors of colour operations are 1 + strength;
    posterize counts the bits kept, solarize is a share of 255. Operations without a strength have 0; so has
    SolarizeAdd (a number of grey levels), which torchvision lacks.
    """
    table = torch.zeros(len(OPERATIONS), bins, dtype=torch.float64)
    reach = {"ShearX": 0.3, "ShearY": 0.3, "TranslateX": 150 / 331 * width, "TranslateY": 150 / 331 * height}
    reach |= {"Rotate": 30.0, "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9}
    for name, largest in reach.items():
        table[OPERATIONS.index(name)] = torch.linspace(0.0, largest, bins)
    table[OPERATIONS.index("Posterize")] = (8 - torch.arange(bins) / ((bins - 1) / 4)).round()
    table[OPERATIONS.index("Solarize")] = torch.linspace(1.0, 0.0, bins)
    return table


def affine_matrices(operations: Tensor, magnitudes: Tensor, height: int, width: int) -> Tensor:
    """Return the maps from output to source place of the geometric operations, see `affine`.

    Args:
        operations: positions in `OPERATIONS`, ShearX to Rotate, (N,) int64.
        magnitudes: signed strengths, (N,) float64. Shear holds the top left corner fixed, rotation the centre.
        height: of the images.
        width: of the images.

    Returns:
        (N, 2, 3) float64.
    """
    kinds = range(1, _FIRST_COLOUR)
    shear_x, shear_y, shift_x, shift_y, turn = (magnitudes * (operations == kind) for kind in kinds)
    angle = torch.deg2rad(turn)
    cosine, sine = angle.cos(), angle.sin()
    first = torch.stack([cosine, shear_x - sine, shear_x * height / 2 - shift_x.trunc()], dim=1)
    second = torch.stack([shear_y + sine, cosine, shear_y * width / 2 - shift_y.trunc()], dim=1)
    return torch.stack([first, second], dim=1)


def apply_operations(images: Tensor, operations: Tensor, magnitudes: Tensor, fill: Tensor | None = None) -> Tensor:
    """Apply to each image its own operation, each operation running once.

    The images are sorted by operation, so that each operation works in place on one slice, and then sorted back.

    Args:
        images: (N, 3, H, W) uint8; not changed.
        operations: positions in `OPERATIONS`, (N,) int64.
        magnitudes: signed strengths, (N,) float64.
        fill: colour that shear, shift and turn bring in from outside, (3,) uint8; default black.

    Returns:
        (N, 3, H, W) uint8.
    """
    operations, order = operations.sort()
    images, magnitudes = images.index_select(0, order), magnitudes[order]
    ends = torch.bincount(operations, minlength=len(OPERATIONS)).cumsum(0).tolist()
    moved = slice(ends[0], ends[_FIRST_COLOUR - 1])
    if moved.start < moved.stop:
        matrices = affine_matrices(operations[moved], magnitudes[moved], *images.shape[-2:])
        images[moved] = affine(images[moved], matrices, fill)
    for kind, operation in enumerate(_COLOUR, start=_FIRST_COLOUR):
        part = slice(ends[kind - 1], ends[kind])
        if part.start < part.stop:
            images[part] = operation(images[part], magnitudes[part])
    return images.index_select(0, order.argsort())
