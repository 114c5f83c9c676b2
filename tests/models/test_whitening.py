"""Whitening filters: what they are for, against a reference in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relatum.errors import ModelError
from relatum.models.whitening import whiten_stem, whitening_filters


@pytest.fixture
def images():
    """Images whose neighbouring pixels and colours go together, as in photographs."""
    noise = torch.randn(40, 1, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    own = torch.randn(40, 3, 12, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return nn.functional.avg_pool2d(2 * noise + 0.7 * own, 3, 1, 1) + 0.5


def _patches(images, side):
    n, _, h, w = images.shape
    return np.array(
        [
            images[i, :, y : y + side, x : x + side].numpy().ravel()
            for i in range(n)
            for y in range(h - side + 1)
            for x in range(w - side + 1)
        ]
    )


@pytest.mark.parametrize("side", [2, 3])
def test_answers_are_uncorrelated_with_unit_variance(images, side):
    filters = whitening_filters(images, side, floor=0.0)
    answers = _patches(images, side) @ filters.reshape(len(filters), -1).numpy().T
    np.testing.assert_allclose(np.cov(answers.T), np.eye(3 * side * side), atol=1e-8)


def test_equals_a_reference_in_numpy_up_to_the_sign(images):
    filters = whitening_filters(images, 2, floor=0.01).reshape(12, 12).numpy()
    variances, directions = np.linalg.eigh(np.cov(_patches(images, 2).T))
    expected = (directions / np.sqrt(variances + 0.01)).T[::-1]
    np.testing.assert_allclose(np.abs((filters * expected).sum(1)), (expected**2).sum(1), rtol=1e-8)


def test_the_first_direction_varies_most_and_the_sign_is_fixed(images):
    filters = whitening_filters(images, 2)
    norms = filters.flatten(1).norm(dim=1)
    assert (norms.diff() >= 0).all(), "a filter is the longer, the less its direction varies"
    assert (filters.flatten(1).sum(1) >= 0).all()
    torch.testing.assert_close(filters, whitening_filters(images.flip(0), 2), rtol=1e-6, atol=1e-8)


def test_a_stem_has_both_signs_and_is_not_trained(images):
    stem = nn.Conv2d(3, 24, 2).double()
    whiten_stem(stem, images)
    torch.testing.assert_close(stem.weight[:12], -stem.weight[12:])
    assert not any(p.requires_grad for p in stem.parameters())
    assert torch.equal(stem.bias, torch.zeros(24, dtype=torch.float64))
    without = nn.Conv2d(3, 24, 2, bias=False).double()
    whiten_stem(without, images)
    assert torch.equal(without.weight, stem.weight)


def test_wrong_stems_and_too_few_patches_are_refused(images):
    with pytest.raises(ModelError, match="24 channels, not 16"):
        whiten_stem(nn.Conv2d(3, 16, 2), images)
    with pytest.raises(ModelError, match="two patches"):
        whitening_filters(images[:1, :, :2, :2], 2)


def test_constant_images_give_finite_filters():
    assert torch.isfinite(whitening_filters(torch.full((4, 3, 8, 8), 0.3), 2)).all()
