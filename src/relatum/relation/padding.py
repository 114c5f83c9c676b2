"""Masks of padded positions, brought to one convention: (N, ...) bool, True is padding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from relatum.errors import ModelError


def from_argument(name: str, value: Tensor | None) -> Tensor | None:
    """Read the mask that a layer receives as argument `name`.

    Args:
        name: names that end in "padding_mask" mark padding with True; all others mark content with True or 1, or, if
            they are added to attention logits, with 0.0.
        value: (N, L), or (N, 1, L, L) as attention layers take it; None where the layer got no mask.

    Returns:
        (N, L) bool, True is padding; None without a mask.
    """
    if value is None:
        return None
    if value.ndim == 4:
        value = value[:, 0, 0, :]
    if name.endswith("padding_mask"):
        return value if value.dtype == torch.bool else value != 0
    return value < 0 if value.is_floating_point() else ~value.bool()


def fit_padding(padding: Tensor, positions: torch.Size, part: slice = slice(None)) -> Tensor:
    """Bring a mask to the positions of a site.

    Args:
        padding: (N, L) or (N, H, W) bool.
        positions: the wanted shape, (N, L) or (N, h, w); image masks are resized to the nearest pixel.
        part: the tokens that are related, where these are not all of a mask (N, L).
    """
    if padding.ndim == 2 and padding[:, part].shape == positions:
        return padding[:, part]
    if padding.shape == positions:
        return padding
    if padding.ndim == 3 and len(positions) == 3 and padding.shape[0] == positions[0]:
        resized = functional.interpolate(padding[:, None].float(), size=tuple(positions[1:]), mode="nearest")
        return resized[:, 0].bool()
    if padding.numel() == positions.numel() and padding.shape[0] == positions[0]:
        return padding.reshape(positions)
    raise ModelError(
        f"a padding mask of shape {tuple(padding.shape)} does not fit positions {tuple(positions)}: "
        "give (N, L) for tokens, or (N, H, W) for feature maps."
    )
