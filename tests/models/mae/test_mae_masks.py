"""Masks: what every kind keeps, and how the kinds differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relatum.errors import ConfigError
from relatum.models.mae import MASKS, check_mask, draw_mask, mask_from_noise
from relatum.models.mae.masks import count_visible

KINDS = ("random", "block", "grid")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_vocabulary_is_closed():
    assert set(MASKS) == set(KINDS)
    with pytest.raises(ConfigError, match="unknown mask 'blok'; did you mean 'block'"):
        draw_mask("blok", 2, (4, 4), 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("grid", "ratio"), [((14, 14), 0.75), ((8, 8), 0.5), ((3, 7), 0.6), ((5, 4), 0.9), ((1, 2), 0.5)]
)
def test_every_mask_is_a_permutation_that_hides_the_same_number(kind, grid, ratio):
    length = grid[0] * grid[1]
    visible = int(np.floor(length * (100 - round(100 * ratio)) / 100))
    drawn = draw_mask(kind, 6, grid, ratio, seeded())
    assert drawn.ids_keep.shape == (6, visible)
    assert drawn.mask.dtype == torch.bool
    assert drawn.mask.sum(1).tolist() == [length - visible] * 6
    assert torch.equal(drawn.ids_restore.sort(1).values, torch.arange(length).expand(6, -1))
    for row in range(6):
        shown = drawn.ids_keep[row].tolist()
        assert set(shown) == {i for i in range(length) if not drawn.mask[row, i]}
        assert sorted(drawn.ids_hidden[row].tolist()) == drawn.mask[row].nonzero().flatten().tolist()
        # The k-th visible patch stands at place k of the shuffled order.
        assert [int(drawn.ids_restore[row, i]) for i in shown] == list(range(visible))


def test_a_mask_from_noise_keeps_the_lowest():
    noise = torch.tensor([[0.9, 0.1, 0.5, 0.3], [0.2, 0.8, 0.4, 0.6]])
    drawn = mask_from_noise(noise, 0.5)
    assert drawn.ids_keep.tolist() == [[1, 3], [0, 2]]
    assert drawn.mask.tolist() == [[True, False, True, False], [False, True, False, True]]
    values = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]])
    shuffled = torch.stack([row[order] for row, order in zip(values, noise.argsort(1), strict=True)])
    assert not torch.equal(shuffled, values)
    assert torch.equal(shuffled.gather(1, drawn.ids_restore), values)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_generator_gives_the_same_mask_and_images_differ(kind):
    first, again, other = (draw_mask(kind, 8, (8, 8), 0.75, seeded(s)).mask for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(row.tolist()) for row in first}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_leaves_torchs_own_alone(kind):
    before = torch.get_rng_state()
    draw_mask(kind, 4, (4, 4), 0.5, seeded())
    assert torch.equal(torch.get_rng_state(), before)
    draw_mask(kind, 4, (4, 4), 0.5)
    assert not torch.equal(torch.get_rng_state(), before)


def test_random_masks_hide_every_patch_equally_often():
    share = draw_mask("random", 4000, (4, 4), 0.75, seeded()).mask.double().mean(0)
    assert (share - 0.75).abs().max() < 0.03


def hidden_neighbours(mask, grid):
    """Share of neighbouring pairs that are both hidden, or both visible."""
    field = mask.view(-1, *grid)
    along = (field[:, 1:] == field[:, :-1]).double().mean()
    across = (field[:, :, 1:] == field[:, :, :-1]).double().mean()
    return float(along + across) / 2


def test_blocks_hold_together_and_the_grid_keeps_apart():
    grid = (14, 14)
    alike = {kind: hidden_neighbours(draw_mask(kind, 200, grid, 0.5, seeded()).mask, grid) for kind in KINDS}
    assert alike["random"] == pytest.approx(0.5, abs=0.02)
    assert alike["block"] > 0.75
    assert alike["grid"] == 0  # half of the patches: a chessboard


def test_blocks_cover_every_place():
    share = draw_mask("block", 3000, (8, 8), 0.5, seeded()).mask.double().mean(0)
    assert share.min() > 0.25
    assert share.max() < 0.75


@pytest.mark.parametrize("grid", [(14, 14), (8, 8), (4, 6)])
def test_three_quarters_on_a_grid_is_one_visible_patch_in_each_two_by_two(grid):
    field = draw_mask("grid", 32, grid, 0.75, seeded()).mask.view(32, *grid)
    squares = (~field).view(32, grid[0] // 2, 2, grid[1] // 2, 2).sum((2, 4))
    assert (squares == 1).all()
    corners = {tuple((~row[:2, :2]).flatten().tolist()) for row in field}
    assert len(corners) == 4  # all four shifts of the lattice occur


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_ratio_outside_is_refused(ratio):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        check_mask("random", (4, 4), ratio)


@pytest.mark.parametrize(
    ("grid", "ratio", "words"),
    [((2, 2), 0.9, "2 x 2 patches no patch is visible; lower"), ((1, 1), 0.5, "no patch is visible")],
)
def test_a_ratio_that_leaves_nothing_is_refused(grid, ratio, words):
    with pytest.raises(ConfigError, match=words):
        draw_mask("random", 2, grid, ratio)


def test_a_ratio_that_hides_nothing_is_refused():
    with pytest.raises(ConfigError, match="no patch is hidden; raise"):
        check_mask("random", (2, 2), 1e-12)


def test_binary_fractions_round_as_decimal_ones():
    assert int(10 * (1 - 0.9)) == 0  # what plain truncation would give
    assert count_visible(10, 0.9) == 1
    assert [count_visible(n, 0.75) for n in (196, 64, 256, 7)] == [49, 16, 64, 1]
