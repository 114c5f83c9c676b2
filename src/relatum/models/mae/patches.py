"""Images as patches, the targets of the reconstruction, and its loss: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from relatum.errors import ModelError
from relatum.models.mae.positions import Grid

_EPSILON = 1e-6  # added to the variance of a patch: one without any contrast has targets 0


def patchify(images: Tensor, patch: int) -> Tensor:
    """Cut images (N, C, H, W) into patches (N, L, patch * patch * C).

    Patches go row by row; the values in a patch too, and the channel changes fastest.
    """
    n, channels, height, width = images.shape
    if height % patch or width % patch:
        raise ModelError(
            f"images of {height} x {width} pixels cannot be cut into whole patches of {patch}; resize them to "
            f"multiples of {patch}, or take a patch size that divides both sides."
        )
    # Channels first in their place, then whole rows of a patch: two quick copies instead of one value by value.
    pixels = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    cells = pixels.reshape(n, height // patch, patch, width // patch, patch * channels)
    return cells.transpose(2, 3).reshape(n, -1, patch * patch * channels)


def unpatchify(patches: Tensor, patch: int, grid: Grid) -> Tensor:
    """Put patches (N, L, patch * patch * C) back together: (N, C, H, W), the inverse of `patchify`."""
    rows, columns = grid
    cells = patches.reshape(patches.shape[0], rows, columns, patch, patch, -1)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(patches.shape[0], -1, rows * patch, columns * patch)


def select(tokens: Tensor, ids: Tensor) -> Tensor:
    """Pick tokens (N, L, D) by ids (N, K) of their own row: (N, K, D).

    One row copy per token; `torch.gather` would look up every channel, ten times slower in both directions.
    """
    n, length, width = tokens.shape
    first = torch.arange(0, n * length, length, device=ids.device).unsqueeze(1)
    return tokens.reshape(-1, width).index_select(0, (ids + first).flatten()).view(n, ids.shape[1], width)


def normalise_patches(patches: Tensor) -> Tensor:
    """Bring every patch to mean 0 and variance 1, over all its values; the variance is the unbiased one."""
    # One pass of layer_norm, whose variance is the biased one: the factor makes up for it.
    values = patches.shape[-1]
    factor = (values - 1) / values
    weight = patches.new_full((values,), math.sqrt(factor))
    return functional.layer_norm(patches, (values,), weight, eps=factor * _EPSILON)


def denormalise_patches(normalised: Tensor, patches: Tensor) -> Tensor:
    """Undo `normalise_patches` with the mean and the spread of the true `patches`."""
    mean, std = patch_statistics(patches)
    return normalised * std + mean


def patch_statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each patch (N, L, P), both (N, L, 1)."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return mean, (variance + _EPSILON).sqrt()


def reconstruction_loss(prediction: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Squared error of the hidden patches: mean over the values of a patch, then over all hidden patches.

    Args:
        prediction: (N, L, P).
        targets: (N, L, P).
        mask: (N, L), True or 1 where a patch is hidden.

    Raises:
        ModelError: the rows differ: a relation has doubled the predictions, and the targets were not repeated.
    """
    if prediction.shape != targets.shape:
        raise ModelError(
            f"predictions {tuple(prediction.shape)} and targets {tuple(targets.shape)} do not match. With an attached "
            "relation, repeat both targets and mask for its streams: reconstruction_loss(output.prediction, "
            "relation.targets(output.targets), relation.targets(output.mask))."
        )
    error = functional.mse_loss(prediction.float(), targets.float(), reduction="none").mean(dim=-1)
    return (error * mask).sum() / mask.sum()


def to_pixels(patches: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Turn patches (N, L, P) of normalised images into pixels from 0 to 1, what is outside cut off.

    Args:
        patches: values as the model sees them.
        mean: of each channel, on the scale 0 to 1, as in the preprocessing.
        std: of each channel, likewise.
    """
    centre, scale = patches.new_tensor(mean), patches.new_tensor(std)
    pixels = patches.unflatten(-1, (-1, len(centre))) * scale + centre
    return pixels.clamp(0, 1).flatten(-2)


def masked_mse(prediction: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error of the hidden patches of each image, (N,).

    Args:
        prediction: (N, L, P), on the scale of `patches`; for errors in pixels, both from `to_pixels`.
        patches: (N, L, P), the truth.
        mask: (N, L), True where a patch is hidden.
    """
    error = (prediction.float() - patches.float()).square().mean(dim=-1)
    return (error * mask).sum(dim=1) / mask.sum(dim=1)


def psnr(mse: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in decibels of a squared error on the scale 0 to 1; infinite without error."""
    return -10 * mse.log10()
