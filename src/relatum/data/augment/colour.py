"""What happens to pixel values: one function per operation, uint8 in and out, one strength per image.

The arithmetic follows torchvision's for uint8 tensors. torchvision applies one strength to a whole tensor; here each
image of a batch has its own. Operations without a strength are torchvision's own, which already work image by image.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv


def _each(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N,) to (N, 1, 1, 1), to broadcast over the pixels of each image."""
    return values.to(dtype).view(-1, 1, 1, 1)


def _to_pixels(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return factor x images + (1 - factor) x other, in float32, cut to 0..255 and towards zero."""
    rest = _each(1.0 - factor.to(torch.float64))
    return _to_pixels(images.to(torch.float32).mul_(_each(factor)).add_(rest * other))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Multiply all pixels of image i by `factor[i]` >= 0; images (N, 3, H, W), factor (N,)."""
    return _to_pixels(images.to(torch.float32).mul_(_each(factor)))


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey version of the image: 0 is grey, 1 unchanged, above 1 more colour."""
    return _blend(images, tv.rgb_to_grayscale(images).to(torch.float32), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey of the image: 0 is flat grey, 1 unchanged, above 1 more contrast."""
    mean = tv.rgb_to_grayscale(images).to(torch.float32).mean((1, 2, 3), keepdim=True)
    return _blend(images, mean, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a smoothed version: 0 is smooth, 1 unchanged, above 1 sharper. The outermost pixels stay."""
    if min(images.shape[-2:]) <= 2:
        return images
    values = images.to(torch.float32)
    centre = values[..., 1:-1, 1:-1]
    # The 3 x 3 kernel has ones around a five, over thirteen: a box sum by rows and columns, plus four times the centre.
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    smooth = rows[..., :-2].add(rows[..., 1:-1]).add_(rows[..., 2:]).add_(centre, alpha=4.0).mul_(1 / 13).round_()
    centre.add_(smooth.sub_(centre).mul_(_each(1.0 - factor.to(torch.float64))))
    return _to_pixels(values)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits[i]` highest bits (0 to 8) of each pixel of image i."""
    masks = torch.tensor([256 - 2 ** (8 - kept) for kept in range(9)], dtype=torch.uint8)
    return images & _each(masks[bits.long()], torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the pixels of image i that reach `threshold[i]` (0 to 256; no pixel reaches 256)."""
    lowest = threshold.float().ceil()
    reached = (images >= _each(lowest.clamp(max=255), torch.uint8)).to(torch.uint8)
    # v xor 255 is 255 - v: several times faster than `where`.
    return images ^ reached.mul_(_each(255 * (lowest < 256), torch.uint8))


def solarize_add(images: Tensor, addition: Tensor) -> Tensor:
    """Add `addition[i]` (0 to 128) to the pixels of image i that are below 128."""
    return images + (images < 128).to(torch.uint8).mul_(_each(addition, torch.uint8))


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel of each image to the full range."""
    return tv.autocontrast(images)


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel of each image."""
    return tv.equalize(images)


def invert(images: Tensor) -> Tensor:
    """Turn each pixel v into 255 - v."""
    return images.bitwise_not()


_JITTER = (brightness, contrast, saturation)
_ORDERS = torch.tensor(list(permutations(range(len(_JITTER)))))


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast and saturation by factors from [1 - strength, 1 + strength], in random order per image."""

    strength: float = 0.4

    def sample(self, n: int, height: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the factor of each operation, (N, 3) float64, and the order of the operations, (N, 3) int64."""
        low, high = max(0.0, 1.0 - self.strength), 1.0 + self.strength
        factors = torch.empty((n, len(_JITTER)), dtype=torch.float64).uniform_(low, high, generator=generator)
        return factors, _ORDERS[torch.randint(len(_ORDERS), (n,), generator=generator)]

    def apply(self, images: Tensor, params: tuple[Tensor, Tensor]) -> Tensor:
        """Jitter (N, 3, H, W): at each place in the order, each operation runs once on the images that want it."""
        factors, order = params
        images = images.clone()
        for place in order.T:
            for which, operation in enumerate(_JITTER):
                chosen = (place == which).nonzero().squeeze(1)
                if len(chosen):
                    changed = operation(images.index_select(0, chosen), factors[chosen, which])
                    images.index_copy_(0, chosen, changed)
        return images
