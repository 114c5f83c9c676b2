"""The whole chain of a `DataConfig`, batched and image by image."""

from __future__ import annotations

import pytest
import torch

from relatum.config import DataConfig
from relatum.data.augment import build_augment
from relatum.data.preprocess import NORMALISE, normalise
from relatum.errors import ConfigError

CHAINS = {
    "none": {"augment": "none"},
    "weak": {"augment": "weak"},
    "cifar": {"augment": "autoaugment", "cutout": 8},
    "rand": {"augment": "randaugment", "magnitude": 12, "erasing": 0.5},
    "crop": {"augment": "crop"},
    "imagenet": {"augment": "imagenet"},
    "deit": {"augment": "deit", "erasing": 0.25},
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def build(name, **more):
    return build_augment(DataConfig(image_size=16, normalise="half", **CHAINS[name], **more))


def noise(n, side=16):
    return torch.randint(256, (n, 3, side, side), dtype=torch.uint8, generator=seeded(9))


@pytest.mark.parametrize("name", CHAINS)
def test_output_is_a_function_of_images_and_generator(name):
    images = noise(33)
    before = images.clone()
    augment = build(name)
    got = augment(images, seeded(1))
    assert got.shape == (33, 3, 16, 16) and got.dtype == torch.float32 and bool(got.isfinite().all())
    if name != "none":
        assert not torch.equal(got, augment(images, seeded(2)))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    assert torch.equal(got, augment(images, seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", CHAINS)
def test_several_batches_together_are_the_same_as_one_by_one(name):
    images, augment = noise(3 * 11), build(name)
    together = list(augment.batches(images, [seeded(1), seeded(2), seeded(3)]))
    assert [len(batch) for batch in together] == [11, 11, 11]
    for got, part, seed in zip(together, images.split(11), (1, 2, 3), strict=True):
        assert torch.equal(got, augment(part, seeded(seed)))


def test_none_only_normalises():
    images = noise(3)
    assert torch.equal(build("none")(images, seeded()), normalise(images, *NORMALISE["half"]))


def test_padding_and_cutout_are_black_before_normalisation():
    white = torch.full((200, 3, 16, 16), 255, dtype=torch.uint8)
    values = build("weak", cutout=6)(white, seeded())
    assert set(values.unique().tolist()) == {-1.0, 1.0}  # 0 and 255 under mean 0.5, std 0.5
    assert (values[:, 0, 8, 8] == -1).any()  # a hole in the middle: Cutout; at the border: padding
    assert (build("weak")(white, seeded())[:, 0, 8, 8] == 1).all()


@pytest.mark.parametrize("name", CHAINS)
def test_batched_and_single_images_have_the_same_distribution(name):
    n = 500
    image = noise(1)[0]
    image[:, :8] //= 3  # upper half darker, so that place matters
    augment = build(name)
    batched = augment(image.expand(n, -1, -1, -1), seeded(3))
    pixels = image.permute(1, 2, 0).numpy()
    single = torch.stack([augment.one(pixels, seeded(1000 + i)) for i in range(n)])
    for statistic in (
        lambda x: x.mean((1, 2, 3)),
        lambda x: x.std((1, 2, 3)),
        lambda x: x[:, 0, 3, 3],
        lambda x: (x[:, :, :, :8] - x[:, :, :, 8:]).mean((1, 2, 3)),
    ):
        a, b = statistic(batched), statistic(single)
        assert abs(a.mean() - b.mean()) <= 4.5 * ((a.var() + b.var()) / n).sqrt() + 1e-6
        if name != "none":
            assert a.std() > 0
            assert abs(a.std() / b.std() - 1) < 0.2


def test_single_images_of_any_size():
    for name in CHAINS:
        pixels = torch.randint(256, (40, 61, 3), dtype=torch.uint8, generator=seeded()).numpy()
        assert build(name).one(pixels, seeded()).shape == (3, 16, 16)


def test_crop_is_the_resized_crop_of_masked_autoencoders_and_a_flip():
    augment = build("crop")
    assert augment.crops_full_images and augment.flip is not None
    assert augment.policy is None and augment.jitter is None and augment.pad_crop is None
    boxes = augment.resized_crop.sample(2000, 100, 100, seeded())
    share = (boxes[:, 2] * boxes[:, 3]).double() / 100**2
    assert 0.195 < share.min() < 0.22 and 0.95 < share.max() <= 1
    wide = build("imagenet").resized_crop.sample(2000, 100, 100, seeded())
    assert (wide[:, 2] * wide[:, 3]).min() < 1500
    assert (augment.resized_crop.interpolation, build("imagenet").resized_crop.interpolation) == ("bicubic", "bilinear")


def test_batches_of_another_size_are_refused_unless_cropped():
    with pytest.raises(ConfigError, match="image_size"):
        build("weak")(noise(2, 20), seeded())
    assert build("imagenet")(noise(2, 20), seeded()).shape == (2, 3, 16, 16)
