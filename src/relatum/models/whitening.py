"""A first layer that need not be learned: filters that decorrelate the patches of the training images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relatum.errors import ModelError

# Directions with less variance than this are not blown up to full size: they are mostly noise.
_FLOOR = 5e-4


def whitening_filters(images: Tensor, side: int, floor: float = _FLOOR) -> Tensor:
    """Return filters whose answers on the patches of `images` are uncorrelated and of about unit variance.

    Args:
        images: (N, C, H, W), normalised as the network will see them.
        side: of the square patches.
        floor: added to the variance of each direction before dividing by its root.

    Returns:
        (C x side x side, C, side, side), the direction of most variance first.
    """
    channels = images.shape[1]
    patches = images.double().unfold(2, side, 1).unfold(3, side, 1).permute(0, 2, 3, 1, 4, 5)
    patches = patches.reshape(-1, channels * side * side)
    if len(patches) < 2:
        raise ModelError("whitening needs at least two patches to tell how they vary; give more or larger images.")
    centred = patches - patches.mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / (len(patches) - 1))
    filters = (directions / (variances.clamp_min(0) + floor).sqrt()).T.flip(0)
    # An eigenvector has no sign of its own; fixed here, so that the same images always give the same filters.
    filters = filters * torch.where(filters.sum(1, keepdim=True) < 0, -1.0, 1.0)
    return filters.reshape(-1, channels, side, side).to(images.dtype)


def whiten_stem(stem: nn.Conv2d, images: Tensor) -> None:
    """Set the weights of `stem` to whitening filters of `images` and to their negatives, and stop training the stem.

    Both signs are there because a rectifier behind the stem would lose half of each answer. A bias becomes 0 and stays
    so: to train it, the next layer would have to compute the gradient of its input, a twentieth of all products.

    Args:
        stem: a convolution with two filters for each direction of its patches.
        images: (N, C, H, W), normalised as the network will see them.
    """
    side = stem.kernel_size[0]
    filters = whitening_filters(images, side)
    if stem.out_channels != 2 * len(filters):
        raise ModelError(
            f"a whitened stem over patches of {stem.in_channels} x {side} x {side} values has {2 * len(filters)} "
            f"channels, not {stem.out_channels}."
        )
    with torch.no_grad():
        stem.weight.copy_(torch.cat([filters, -filters]))
        if stem.bias is not None:
            stem.bias.zero_()
    stem.requires_grad_(False)
