"""Fixed positions and their change to another grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.layers import resample_abs_pos_embed
from torch.nn import functional

from relatum.errors import ConfigError, ModelError
from relatum.models.mae import resize_positions, sincos_positions


def codes_by_hand(rows, columns, width):
    """Patch by patch and channel by channel: sin x, cos x, sin y, cos y."""
    quarter = width // 4
    table = np.zeros((rows * columns, width))
    for y in range(rows):
        for x in range(columns):
            for j in range(quarter):
                frequency = 10000.0 ** (-j / quarter)
                at = table[y * columns + x]
                at[j], at[quarter + j] = np.sin(x * frequency), np.cos(x * frequency)
                at[2 * quarter + j], at[3 * quarter + j] = np.sin(y * frequency), np.cos(y * frequency)
    return table


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (6, 2), (1, 7)])
def test_positions_are_those_written_out_by_hand(rows, columns):
    table = sincos_positions((rows, columns), 24)
    assert table.shape == (1, 1 + rows * columns, 24)
    assert not table[0, 0].any()
    np.testing.assert_allclose(table[0, 1:].numpy(), codes_by_hand(rows, columns, 24), atol=1e-5)


def test_the_first_half_is_the_column_and_the_second_the_row():
    table = sincos_positions((3, 5), 8, prefix_tokens=0).view(3, 5, 8)
    assert torch.equal(table[0, :, :4], table[2, :, :4])
    assert not torch.equal(table[:, 0, :4], table[:, 1, :4])
    assert torch.equal(table[:, 0, 4:], table[:, 4, 4:])
    assert not torch.equal(table[0, :, 4:], table[1, :, 4:])


def test_a_width_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="multiple of 4, not 10; take 8 or 12"):
        sincos_positions((2, 2), 10)


@pytest.mark.parametrize(
    ("old", "new"), [((8, 8), (14, 14)), ((14, 14), (24, 24)), ((4, 6), (7, 5)), ((14, 14), (8, 8))]
)
def test_resized_positions_are_bicubic_and_keep_the_class_token(old, new):
    table = torch.randn(1, 1 + old[0] * old[1], 12)
    picture = table[:, 1:].reshape(1, *old, 12).permute(0, 3, 1, 2)
    wanted = functional.interpolate(picture, size=new, mode="bicubic", align_corners=False)
    resized = resize_positions(table, old, new)
    assert resized.shape == (1, 1 + new[0] * new[1], 12)
    assert torch.equal(resized[:, :1], table[:, :1])
    torch.testing.assert_close(resized[:, 1:], wanted.flatten(2).transpose(1, 2))


def test_it_is_timms_resampling_without_its_smoothing():
    table = torch.randn(1, 65, 12)
    smoothed, plain = (resample_abs_pos_embed(table, [14, 14], [8, 8], antialias=smooth) for smooth in (True, False))
    resized = resize_positions(table, (8, 8), (14, 14))
    assert not torch.allclose(resized, smoothed, atol=1e-3)
    assert torch.equal(resized, plain)


def test_the_same_grid_and_a_chain_of_sizes():
    table = sincos_positions((8, 8), 16)
    assert torch.equal(resize_positions(table, (8, 8), (8, 8)), table)
    chain = resize_positions(resize_positions(table, (8, 8), (14, 14)), (14, 14), (24, 24))
    assert chain.shape == (1, 1 + 24 * 24, 16)
    bare = resize_positions(table[:, 1:], (8, 8), (14, 14), prefix_tokens=0)
    assert torch.equal(bare, resize_positions(table, (8, 8), (14, 14))[:, 1:])


def test_a_table_for_another_grid_is_refused():
    with pytest.raises(ModelError, match=r"holds 65 positions, but 14 x 14 .* need 197"):
        resize_positions(torch.zeros(1, 65, 8), (14, 14), (24, 24))
