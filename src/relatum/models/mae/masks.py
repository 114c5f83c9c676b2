"""Which patches are hidden: random, in blocks, or on a regular grid.

Every mask is an order of the patches, drawn per image; the first in the order stay visible. So all images of a batch
keep the same number, and the visible patches of a batch form one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from relatum.errors import ConfigError, suggest
from relatum.models.mae.positions import Grid

_ROUNDING = 1e-9  # 10 x (1 - 0.9) is a little less than 1 in binary and must not become 0
_BLOCKS = 32  # enough to cover nearly the whole grid
_BLOCK_AREA = (0.08, 0.25)  # of the grid
_BLOCK_ASPECT = 0.3  # the flattest block; the steepest is its inverse


class TokenMask(NamedTuple):
    """The patches of a batch that are hidden.

    Attributes:
        ids_keep: (N, K) int64, the visible patches in the order in which the encoder gets them.
        ids_restore: (N, L) int64, the place of each patch in [visible; hidden].
        mask: (N, L) bool, True where a patch is hidden.
        ids_hidden: (N, L - K) int64, the hidden patches.
    """

    ids_keep: Tensor
    ids_restore: Tensor
    mask: Tensor
    ids_hidden: Tensor


def draw_mask(
    kind: str,
    n: int,
    grid: Grid,
    ratio: float,
    generator: Generator | None = None,
    device: torch.device | str | None = None,
) -> TokenMask:
    """Draw a mask for each of `n` images.

    Args:
        kind: a key of `MASKS`.
        n: number of images N.
        grid: rows and columns of patches.
        ratio: share of the patches that is hidden.
        generator: source of chance; it may live on another device. None takes torch's own, as dropout does.
        device: where the mask is wanted; None means where the generator is.
    """
    check_mask(kind, grid, ratio)
    place = torch.device(device) if device is not None else generator.device if generator is not None else None
    return mask_from_noise(MASKS[kind](n, grid, generator, place), ratio)


def mask_from_noise(noise: Tensor, ratio: float) -> TokenMask:
    """Hide the patches with the highest values of `noise` (N, L), row by row."""
    shuffled = noise.argsort(dim=1)
    places = torch.arange(noise.shape[1], device=noise.device).expand_as(shuffled)
    restore = torch.empty_like(shuffled).scatter_(1, shuffled, places)  # the inverse permutation
    visible = count_visible(noise.shape[1], ratio)
    return TokenMask(shuffled[:, :visible], restore, restore >= visible, shuffled[:, visible:])


def count_visible(patches: int, ratio: float) -> int:
    """How many of `patches` stay visible: patches x (1 - ratio), rounded down."""
    return int(patches * (1 - ratio) + _ROUNDING)


def check_mask(kind: str, grid: Grid, ratio: float) -> None:
    """Raise ConfigError unless `kind` exists and `ratio` hides some of the patches, but not all."""
    if kind not in MASKS:
        raise ConfigError(f"unknown mask '{kind}'; {suggest(kind, MASKS)}")
    if not 0 < ratio < 1:
        raise ConfigError(
            f"the mask ratio is the share of hidden patches, between 0 and 1, not {ratio}; 0.75 is usual."
        )
    patches = grid[0] * grid[1]
    visible = count_visible(patches, ratio)
    if not 0 < visible < patches:
        fault, cure = ("no patch is visible", "lower") if visible == 0 else ("no patch is hidden", "raise")
        raise ConfigError(
            f"with a mask ratio of {ratio} on {grid[0]} x {grid[1]} patches {fault}; {cure} the ratio, or take "
            "smaller patches or larger images."
        )


def _random(n: int, grid: Grid, generator: Generator | None, device: torch.device | None) -> Tensor:
    """Every patch for itself."""
    return _uniform((n, grid[0] * grid[1]), generator, device)


def _block(n: int, grid: Grid, generator: Generator | None, device: torch.device | None) -> Tensor:
    """Rectangles of random place, size and shape are hidden one after another; the last one in part, centre first."""
    area, aspect, row, column = _uniform((4, n, _BLOCKS), generator, device)
    area = (_BLOCK_AREA[0] + (_BLOCK_AREA[1] - _BLOCK_AREA[0]) * area) * (grid[0] * grid[1])
    stretch = ((2 * aspect - 1) * -math.log(_BLOCK_ASPECT)).exp()
    far_y = _distance(grid[0], row, (area * stretch).sqrt())
    far_x = _distance(grid[1], column, (area / stretch).sqrt())
    far = torch.maximum(far_y.unsqueeze(-1), far_x.unsqueeze(-2)).flatten(2)  # (n, blocks, L): below 1 is inside
    turn = torch.arange(_BLOCKS, device=far.device).view(-1, 1)
    hidden_at = torch.where(far < 1, turn + 0.9 * far, float(_BLOCKS)).amin(dim=1)
    return -(hidden_at + 0.1 * _uniform(tuple(hidden_at.shape), generator, device))


def _distance(cells: int, centre: Tensor, side: Tensor) -> Tensor:
    """Distance of each of `cells` from the centres (n, blocks), a number from 0 to 1, in halves of the side."""
    middle = (centre * cells - 0.5).unsqueeze(-1)
    return (torch.arange(cells, device=centre.device) - middle).abs() / side.clamp(min=1).unsqueeze(-1) * 2


def _grid(n: int, grid: Grid, generator: Generator | None, device: torch.device | None) -> Tensor:
    """The visible patches lie as evenly as can be, for 0.75 one in each 2 x 2; the pattern is shifted per image."""
    pattern = _dither(max(grid), device)
    side = pattern.shape[0]
    shift = (_uniform((2, n, 1), generator, device) * side).long()
    rows, columns = ((torch.arange(cells, device=device) + s) % side for cells, s in zip(grid, shift, strict=True))
    return pattern[rows.unsqueeze(-1), columns.unsqueeze(-2)].flatten(1)


def _dither(least: int, device: torch.device | None) -> Tensor:
    """Bayer's ordered-dither matrix of at least that side: for each k, its k lowest entries are spread evenly."""
    quarter = torch.tensor([[0, 2], [3, 1]], device=device)
    pattern = torch.zeros(1, 1, dtype=torch.int64, device=device)
    while pattern.shape[0] < least:
        pattern = (4 * pattern).repeat(2, 2) + quarter.repeat_interleave(len(pattern), 0).repeat_interleave(
            len(pattern), 1
        )
    return pattern


def _uniform(shape: tuple[int, ...], generator: Generator | None, device: torch.device | None) -> Tensor:
    """Numbers from 0 to 1, drawn where the generator is: the same ones for every device they are wanted on."""
    place = device if generator is None else generator.device
    return torch.rand(shape, generator=generator, device=place).to(device)


MASKS: dict[str, Callable[[int, Grid, Generator | None, torch.device | None], Tensor]] = {
    "random": _random,
    "block": _block,
    "grid": _grid,
}
