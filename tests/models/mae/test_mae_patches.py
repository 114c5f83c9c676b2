"""Patches, targets and losses against their definitions, value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relatum.errors import ModelError
from relatum.models.mae import masked_mse, patchify, psnr, reconstruction_loss, unpatchify
from relatum.models.mae.patches import denormalise_patches, normalise_patches, select, to_pixels


def test_patches_by_hand_on_a_rectangle():
    images = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = patchify(images, 2)
    assert patches.shape == (2, 6, 12)
    for row in range(2):
        for column in range(3):
            values = [
                int(images[1, c, 2 * row + y, 2 * column + x]) for y in range(2) for x in range(2) for c in range(3)
            ]
            assert patches[1, row * 3 + column].tolist() == values


@pytest.mark.parametrize(("patch", "channels", "size"), [(2, 3, (4, 6)), (4, 1, (8, 4)), (3, 2, (3, 9))])
def test_unpatchify_is_the_inverse(patch, channels, size):
    images = torch.randn(2, channels, *size)
    patches = patchify(images, patch)
    assert patches.shape[1] > 1
    assert torch.equal(unpatchify(patches, patch, (size[0] // patch, size[1] // patch)), images)


def test_images_that_cannot_be_cut_are_refused():
    with pytest.raises(ModelError, match=r"30 x 32 pixels .* whole patches of 4"):
        patchify(torch.zeros(1, 3, 30, 32), 4)


def test_select_picks_tokens_of_the_own_row_and_passes_gradients():
    tokens = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[4, 0, 0], [1, 2, 3], [3, 3, 1]])
    wanted = torch.stack([tokens[n, ids[n]] for n in range(3)])
    assert torch.equal(select(tokens, ids), wanted)
    assert torch.autograd.gradcheck(lambda t: select(t, ids), (tokens,))


def test_targets_have_the_unbiased_variance():
    patches = torch.randn(2, 4, 12, dtype=torch.float64) * 3 + 5
    array = patches.numpy()
    spread = np.sqrt(array.var(axis=-1, ddof=1, keepdims=True) + 1e-6)
    wanted = (array - array.mean(-1, keepdims=True)) / spread
    np.testing.assert_allclose(normalise_patches(patches).numpy(), wanted, rtol=1e-12)
    # With 12 values the biased variance would be far off.
    assert not np.allclose(normalise_patches(patches).numpy().var(axis=-1), 1, atol=0.05)
    torch.testing.assert_close(denormalise_patches(normalise_patches(patches), patches), patches)


def test_a_patch_without_contrast_has_finite_targets():
    flat = torch.full((1, 2, 12), 0.7)
    assert normalise_patches(flat).abs().max() < 1e-3
    torch.testing.assert_close(denormalise_patches(torch.zeros(1, 2, 12), flat), flat)


def loss_by_hand(prediction, targets, mask):
    total, hidden = 0.0, 0
    for n in range(mask.shape[0]):
        for i in range(mask.shape[1]):
            if mask[n, i]:
                total += float(((prediction[n, i] - targets[n, i]) ** 2).mean())
                hidden += 1
    return total / hidden


def test_the_loss_is_the_mean_over_hidden_patches_of_the_batch():
    prediction, targets = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0, 0, 1], [1, 1, 1, 0, 1], [0, 0, 1, 0, 0]], dtype=torch.bool)  # unequal counts
    loss = reconstruction_loss(prediction, targets, mask)
    assert float(loss) == pytest.approx(loss_by_hand(prediction, targets, mask), rel=1e-6)
    changed = prediction.clone()
    changed[mask] += 1
    assert reconstruction_loss(changed, targets, mask) != loss
    changed = prediction.clone()
    changed[~mask] += 1
    assert torch.equal(reconstruction_loss(changed, targets, mask), loss)


def test_predicting_zero_costs_nearly_one_on_normalised_targets():
    targets = normalise_patches(torch.rand(8, 16, 48))
    loss = reconstruction_loss(torch.zeros_like(targets), targets, torch.ones(8, 16, dtype=torch.bool))
    assert float(loss) == pytest.approx(47 / 48, abs=1e-4)


def test_half_precision_predictions_are_compared_in_single_precision():
    targets, mask = torch.randn(2, 4, 6), torch.ones(2, 4, dtype=torch.bool)
    loss = reconstruction_loss(targets.bfloat16(), targets, mask)
    assert loss.dtype == torch.float32
    assert 0 < float(loss) < 1e-3


def test_predictions_of_two_streams_are_refused_with_the_cure():
    with pytest.raises(ModelError, match=r"relation.targets\(output.targets\), relation.targets\(output.mask\)"):
        reconstruction_loss(torch.zeros(4, 3, 2), torch.zeros(2, 3, 2), torch.ones(2, 3, dtype=torch.bool))


def test_pixels_take_the_statistics_of_their_channel():
    mean, std = (0.5, 0.4, 0.3), (0.1, 0.2, 0.25)
    pixels = torch.rand(2, 3, 4, 4)
    seen = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(to_pixels(patchify(seen, 2), mean, std), patchify(pixels, 2))
    assert to_pixels(torch.full((1, 1, 12), 99.0), mean, std).max() == 1
    assert to_pixels(torch.full((1, 1, 12), -99.0), mean, std).min() == 0


def test_errors_in_pixels_per_image():
    truth = torch.rand(2, 4, 12)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    prediction = truth.clone()
    prediction[0, 0] += 0.1  # one of two hidden patches
    prediction[0, 2] += 9  # visible: does not count
    prediction[1, 3] -= 0.01
    errors = masked_mse(prediction, truth, mask)
    torch.testing.assert_close(errors, torch.tensor([0.01 / 2, 0.0001]), rtol=1e-3, atol=0)
    torch.testing.assert_close(psnr(errors), torch.tensor([-10 * math.log10(0.005), 40.0]), rtol=1e-3, atol=0)
    assert math.isinf(float(psnr(torch.zeros(()))))
