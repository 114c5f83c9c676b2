"""Positions of patches: fixed sine-cosine codes, and the change of a position table to another grid."""

from __future__ import annotations

import torch
from timm.layers import resample_abs_pos_embed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from torch import Tensor

from relatum.errors import ConfigError, ModelError

Grid = tuple[int, int]


def sincos_positions(grid: Grid, width: int, prefix_tokens: int = 1) -> Tensor:
    """Fixed two-dimensional codes of the patches, row by row; tokens before them get zeros.

    A quarter of the channels each: sin x, cos x, sin y, cos y, where x is the column and y the row, both counted
    from 0, at frequencies falling from 1 to nearly 1/10000. Public masked autoencoders have the same order.

    Args:
        grid: rows and columns of patches; they may differ.
        width: channels D, a multiple of 4.
        prefix_tokens: number of tokens before the patches (the class token).

    Returns:
        (1, prefix_tokens + rows * columns, D) in float32.
    """
    if width < 4 or width % 4:
        near = max(width // 4, 1) * 4
        raise ConfigError(
            f"sine-cosine positions need a width that is a multiple of 4, not {width}; take {near} or {near + 4}."
        )
    # timm has sin y, cos y, sin x, cos x (it calls that interleaved): the halves change places.
    codes = build_sincos2d_pos_embed(list(grid), dim=width, interleave_sin_cos=True).roll(width // 2, dims=1)
    return torch.cat([codes.new_zeros(prefix_tokens, width), codes]).unsqueeze(0)


def resize_positions(pos_embed: Tensor, old_grid: Grid, new_grid: Grid, prefix_tokens: int = 1) -> Tensor:
    """Interpolate a table of positions for images of another size: bicubic, the tokens before the patches stay.

    timm's own resampling, without the smoothing that it adds by default and that the published runs did not have.

    Args:
        pos_embed: (1, prefix_tokens + L, D), where L is the number of patches of `old_grid`.
        old_grid: rows and columns of patches that the table was made for.
        new_grid: rows and columns of patches that are wanted.
        prefix_tokens: number of tokens before the patches (the class token).

    Returns:
        (1, prefix_tokens + L', D), where L' is the number of patches of `new_grid`.
    """
    have, want = pos_embed.shape[1], prefix_tokens + old_grid[0] * old_grid[1]
    if have != want:
        raise ModelError(
            f"the table holds {have} positions, but {old_grid[0]} x {old_grid[1]} patches and {prefix_tokens} other "
            f"token(s) need {want}; give the grid (image size over patch size) that the table was made for."
        )
    resized: Tensor = resample_abs_pos_embed(
        pos_embed, list(new_grid), list(old_grid), num_prefix_tokens=prefix_tokens, antialias=False
    )
    return resized
