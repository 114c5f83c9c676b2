"""Evaluation-time preprocessing."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from relatum.config import DataConfig, Normalisation
from relatum.data.preprocess import NORMALISE, Preprocess, fit_square, normalise
from relatum.errors import ConfigError, DataError


def image(h, w, seed=0):
    coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(coarse, (h, w), mode="bilinear")[0]
    return (smooth * 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


@pytest.mark.parametrize("size", [(50, 70), (90, 41), (33, 33), (20, 31)])
@pytest.mark.parametrize("resize", [32, 40])
def test_equals_torchvision(size, resize):
    mean, std = NORMALISE["cifar"]
    reference = v2.Compose(
        [v2.Resize(resize), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    )
    pixels = image(*size)
    got = Preprocess(32, resize, mean, std)(pixels)
    assert got.shape == (3, 32, 32) and got.dtype == torch.float32 and got.is_contiguous()
    one_grey_level = 1.01 / 255 / min(std)
    assert (got - reference(torch.from_numpy(pixels).permute(2, 0, 1))).abs().max() <= one_grey_level


def test_an_image_of_the_right_size_is_only_normalised():
    pixels = image(32, 32)
    mean, std = NORMALISE["imagenet"]
    want = (torch.from_numpy(pixels).permute(2, 0, 1).double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    for resize in (32, 36):
        got = Preprocess(32, resize, mean, std)(pixels)
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)


def test_fit_square_of_extreme_shapes():
    for size in ((1, 300), (300, 1), (1, 1)):
        tensor = torch.from_numpy(image(*size)).permute(2, 0, 1)
        assert fit_square(tensor, 8, 8).shape == (3, 8, 8)


@pytest.mark.parametrize(("size", "resize", "want"), [(32, 0, 32), (96, 0, 96), (224, 0, 256), (64, 72, 72)])
def test_default_resize(size, resize, want):
    assert Preprocess.from_config(DataConfig(image_size=size, resize=resize)).resize == want


def test_round_trip_through_json():
    for name in NORMALISE:
        before = Preprocess.from_config(DataConfig(image_size=48, normalise=name))
        assert Preprocess.from_dict(json.loads(json.dumps(before.to_dict()))) == before


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("imagenet-lt", (0.479672, 0.457713, 0.407721), (0.278976, 0.271203, 0.286062)),
        ("imagenet-bal", (0.480767, 0.457071, 0.407718), (0.279940, 0.272481, 0.286038)),
        ("inaturalist18", (0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),
    ],
)
def test_normalisation_of_the_long_tailed_sets(name, mean, std):
    chosen = Preprocess.from_config(DataConfig(normalise=name))
    assert chosen.mean == mean and chosen.std == std
    pixels = np.full((32, 32, 3), 204, np.uint8)  # 204 / 255 = 0.8
    for channel in range(3):
        assert chosen(pixels)[channel, 0, 0].item() == pytest.approx((0.8 - mean[channel]) / std[channel], abs=1e-5)


def test_every_normalisation_of_the_settings_has_its_figures():
    assert set(NORMALISE) == set(get_args(Normalisation))


def test_wrong_records_and_sizes_are_refused():
    with pytest.raises(ConfigError, match="at least image_size"):
        Preprocess.from_config(DataConfig(image_size=64, resize=32))
    with pytest.raises(ConfigError, match="std"):
        Preprocess.from_dict({"image_size": 8, "resize": 8, "mean": [0, 0, 0]})
    with pytest.raises(ConfigError):
        Preprocess(8, 8, (0, 0, 0), (1, 1, 0))


def test_images_that_are_not_rgb_bytes_are_refused():
    preprocess = Preprocess.from_config(DataConfig())
    for wrong in (np.zeros((32, 32), np.uint8), np.zeros((32, 32, 4), np.uint8), np.zeros((32, 32, 3), np.float32)):
        with pytest.raises(DataError, match="uint8"):
            preprocess(wrong)


def test_read_only_images_are_not_written_to():
    pixels = image(32, 32)
    pixels.setflags(write=False)
    before = pixels.copy()
    Preprocess.from_config(DataConfig())(pixels)
    assert np.array_equal(pixels, before)


def test_normalise_of_a_batch_equals_single_images():
    images = torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = NORMALISE["half"]
    assert torch.equal(normalise(images, mean, std), torch.stack([normalise(x, mean, std) for x in images]))
