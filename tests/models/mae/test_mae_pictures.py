"""Pictures: what stands where, under which mask, and what the caption admits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from relatum.errors import ModelError
from relatum.models.mae import create_mae, reconstruction_picture

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images_and_pixels(n=2):
    pixels = torch.randint(0, 256, (n, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    seen = (pixels / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return seen, pixels.permute(0, 2, 3, 1).numpy()


def tiles(picture, n, side=16, gap=4):
    array = np.asarray(picture.image).astype(int)
    return [
        [array[r * (side + gap) :, c * (side + gap) :][:side, :side] for c in range(3)]
        for r in range(n)
    ]  # fmt: skip


def hidden_pixels(model, images, seed):
    mask = model.eval()(images, torch.Generator().manual_seed(seed)).mask
    return mask.view(-1, 4, 4).repeat_interleave(4, 1).repeat_interleave(4, 2).numpy()


@pytest.mark.parametrize("normalised", [True, False])
def test_the_panels_show_truth_mask_and_prediction(normalised):
    model = create_mae("vit-pico-p4", img_size=16, normalised=normalised)
    images, pixels = images_and_pixels()
    picture = reconstruction_picture(model, images, MEAN, STD, seed=7, side=16)
    hidden = hidden_pixels(model, images, 7)
    assert 0 < hidden.sum() < hidden.size
    output = model(images, torch.Generator().manual_seed(7))
    for n, (original, masked, drawn) in enumerate(tiles(picture, 2)):
        np.testing.assert_array_equal(original, pixels[n])
        assert (masked[hidden[n]] == 128).all()
        np.testing.assert_array_equal(masked[~hidden[n]], pixels[n][~hidden[n]])
        np.testing.assert_array_equal(drawn[~hidden[n]], pixels[n][~hidden[n]])
        wanted = prediction_by_hand(output.prediction[n].detach().double().numpy(), images[n], normalised)
        assert np.abs(drawn[hidden[n]] - wanted[hidden[n]]).max() <= 1  # rounding
        assert np.abs(drawn[hidden[n]] - pixels[n][hidden[n]]).mean() > 10


def prediction_by_hand(prediction, image, normalised):
    canvas = np.zeros((16, 16, 3))
    array = image.double().permute(1, 2, 0).numpy()
    for i, values in enumerate(prediction):
        at = np.s_[i // 4 * 4 : i // 4 * 4 + 4, i % 4 * 4 : i % 4 * 4 + 4]
        true = array[at]
        patch = values.reshape(4, 4, 3)
        canvas[at] = patch * np.sqrt(true.var(ddof=1) + 1e-6) + true.mean() if normalised else patch
    return np.round(np.clip(canvas * STD + MEAN, 0, 1) * 255)


def test_the_caption_admits_true_statistics_only_where_they_are_used():
    images, _ = images_and_pixels()
    normal = reconstruction_picture(create_mae("vit-pico-p4", img_size=16), images, MEAN, STD)
    assert "mean and the contrast of each true patch were used" in normal.caption
    raw = reconstruction_picture(create_mae("vit-pico-p4", img_size=16, normalised=False), images, MEAN, STD)
    assert "true patch" not in raw.caption
    assert "random, 75% hidden, seed 0" in raw.caption
    assert "PSNR" in raw.caption
    # The text is on the picture too, and a longer one takes more room.
    assert normal.image.height > raw.image.height
    assert (np.asarray(raw.image)[2 * 132 :] < 100).any()


def test_the_mask_belongs_to_the_seed_and_torchs_generator_is_left_alone():
    model = create_mae("vit-pico-p4", img_size=16)
    images, _ = images_and_pixels()
    before = torch.get_rng_state()
    first, again, other = (reconstruction_picture(model, images, MEAN, STD, seed=s) for s in (3, 3, 4))
    assert not np.array_equal(np.asarray(first.image), np.asarray(other.image))
    assert np.array_equal(np.asarray(first.image), np.asarray(again.image))
    assert torch.equal(torch.get_rng_state(), before)


def test_small_images_are_enlarged_and_the_file_is_a_png(tmp_path):
    model = create_mae("vit-pico-p4", img_size=16).train()
    images, _ = images_and_pixels(3)
    picture = reconstruction_picture(model, images, MEAN, STD)
    assert picture.image.width == 3 * 128 + 2 * 4
    assert model.training
    picture.save(tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as read:
        assert read.format == "PNG"
        assert np.array_equal(np.asarray(read), np.asarray(picture.image))


def test_grey_images_are_refused():
    model = create_mae("vit-pico-p4", img_size=16, in_chans=1)
    with pytest.raises(ModelError, match="three channels, not 1"):
        reconstruction_picture(model, torch.zeros(1, 1, 16, 16), MEAN, STD)
