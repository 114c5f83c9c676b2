"""`augment = "deit"` against timm: which operations, how often, how strong; and crops from images that are small."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as timm_aa

from relatum.config import DataConfig
from relatum.data.augment import TimmRandAugment, build_augment, colour
from relatum.data.augment.operations import OPERATIONS, SIGNED, apply_operations
from relatum.data.augment.timm_randaugment import timm_strengths
from relatum.data.loaders import loaders_from_splits
from relatum.data.memory import stored_side
from relatum.data.source import ArraySource, FileSource
from relatum.errors import ConfigError

TIMM = {name.removesuffix("Increasing").removesuffix("Rel"): name for name in timm_aa._RAND_INCREASING_TRANSFORMS}
NO_STRENGTH = {"AutoContrast", "Equalize", "Invert"}
FILL = (124, 116, 104)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def within(observed, expected, n):
    """Five standard deviations of a share of n draws."""
    return abs(observed - expected) <= 5 * (expected * (1 - expected) / n) ** 0.5


def timm_argument(name, level, size):
    """timm's argument in our units: translation in pixels, factors minus one, the threshold as a share of 255."""
    (value,) = timm_aa.LEVEL_TO_ARG[TIMM[name]](level, {})
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return value - 1
    scale = {"TranslateX": size[1], "TranslateY": size[0], "Solarize": 1 / 255}
    return value * scale.get(name, 1)


def test_operations_are_timms_increasing_set():
    assert len(TIMM) == 15 and set(TIMM) == set(OPERATIONS) - {"Identity"}


@pytest.mark.parametrize("size", [(32, 32), (224, 160)])
@pytest.mark.parametrize("name", TIMM)
def test_strengths_equal_timms_at_every_level(name, size, monkeypatch):
    monkeypatch.setattr(timm_aa, "_randomly_negate", lambda value: value)
    drawn = 10 * torch.rand(200, dtype=torch.float64, generator=seeded())
    levels = torch.cat([torch.linspace(0, 10, 401, dtype=torch.float64), drawn])
    got = timm_strengths(torch.full((len(levels),), OPERATIONS.index(name)), levels, *size)
    if name in NO_STRENGTH:
        assert timm_aa.LEVEL_TO_ARG[TIMM[name]] is None and (got == 0).all()
        return
    want = torch.tensor([timm_argument(name, level, size) for level in levels.tolist()], dtype=torch.float64)
    assert want.unique().numel() > 4
    tolerance = 0.5 + 1e-12 if name.startswith("Translate") else 1e-12  # shifts are whole pixels
    assert (got - want).abs().max() <= tolerance


@pytest.mark.parametrize("name", TIMM)
def test_the_same_operations_have_two_directions(name, monkeypatch):
    asked = []
    monkeypatch.setattr(timm_aa, "_randomly_negate", lambda value: asked.append(value) or value)
    level_to_argument = timm_aa.LEVEL_TO_ARG[TIMM[name]]
    if level_to_argument is not None:
        level_to_argument(5.0, {})
    assert bool(SIGNED[OPERATIONS.index(name)]) == bool(asked)


def test_frequencies_and_signs():
    n = 60_000
    plan = TimmRandAugment().sample(n, 32, 32, seeded())
    for which in range(2):
        share = torch.bincount(plan.operations[:, which], minlength=len(OPERATIONS)) / n
        assert within(float(share[0]), 0.5, n)
        assert all(within(float(s), 0.5 / 15, n) for s in share[1:])
    both = (plan.operations == 0).all(1).float().mean()
    assert within(float(both), 0.25, n)  # the two passes are independent of each other
    for k in range(1, len(OPERATIONS)):
        negative = float((plan.magnitudes[plan.operations == k] < 0).float().mean())
        assert within(negative, 0.5, n / 15) if SIGNED[k] else negative == 0


@pytest.mark.parametrize("magnitude", [9, 10, 0])
def test_levels_are_distributed_as_timms(magnitude):
    """The level is read off the angle of rotations, which is proportional to it, in both implementations."""
    plan = TimmRandAugment(magnitude).sample(100_000, 32, 32, seeded(1))
    mine = plan.magnitudes[plan.operations == OPERATIONS.index("Rotate")].abs().numpy() / 3
    operation = timm_aa.AugmentOp("Rotate", prob=1.0, magnitude=magnitude, hparams={"magnitude_std": 0.5})
    drawn = []
    operation.aug_fn = lambda image, degrees, **_: drawn.append(abs(degrees) / 3)
    state = random.getstate()
    random.seed(0)
    for _ in range(len(mine)):
        operation(None)
    random.setstate(state)
    theirs = np.array(drawn)
    assert mine.min() >= 0 and mine.max() <= 10 and mine.std() > 0.2
    assert abs(mine.mean() - theirs.mean()) < 4.5 * np.sqrt((mine.var() + theirs.var()) / len(mine))
    assert abs(mine.std() / theirs.std() - 1) < 0.06
    for edge in (0, 10):
        assert abs((mine == edge).mean() - (theirs == edge).mean()) < 0.05


def some_images(n, h=32, w=40):
    small = torch.rand(n, 3, 5, 5, generator=seeded(2))
    smooth = torch.nn.functional.interpolate(small, (h, w), mode="bilinear") * 255
    return (smooth + 20 * torch.randn(smooth.shape, generator=seeded(3))).clamp(0, 255).to(torch.uint8)


def timm_pixels(image, name, magnitude):
    """timm's function on Pillow's image, with the nearest pixel instead of its interpolation."""
    pil = Image.fromarray(image.permute(1, 2, 0).numpy())
    if name in ("TranslateX", "TranslateY"):
        function, arguments = timm_aa.NAME_TO_OP[name], (-magnitude,)  # our sign says where the picture moves to
    else:
        values = {"Posterize": int(magnitude), "Solarize": round(255 * magnitude), "SolarizeAdd": int(magnitude)}
        if name in ("Brightness", "Color", "Contrast", "Sharpness"):
            values[name] = 1 + magnitude
        function = timm_aa.NAME_TO_OP[TIMM[name]]
        arguments = () if name in NO_STRENGTH else (values.get(name, magnitude),)
    changed = function(pil, *arguments, resample=Image.Resampling.NEAREST, fillcolor=FILL)
    return torch.from_numpy(np.array(changed)).permute(2, 0, 1)


@pytest.mark.parametrize("name", TIMM)
def test_pixels_equal_timms(name):
    n = 40
    images, k = some_images(n), OPERATIONS.index(name)
    highest = 9.99 if name == "Posterize" else 10  # there it keeps no bit, which recent versions of Pillow refuse
    strength = timm_strengths(torch.full((n,), k), torch.linspace(0, highest, n, dtype=torch.float64), 32, 40)
    strength[::2] *= -1 if SIGNED[k] else 1
    got = apply_operations(images, torch.full((n,), k), strength, torch.tensor(FILL, dtype=torch.uint8))
    want = torch.stack([timm_pixels(x, name, m) for x, m in zip(images, strength.tolist(), strict=True)])
    assert not torch.equal(want, images)
    difference = (got.int() - want.int()).abs()
    if name in ("ShearX", "ShearY", "Rotate"):  # sources half-way between two pixels may fall to either side
        assert (difference.amax(1) > 0).float().mean() < 0.02
    else:
        assert difference.max() <= (
            2 if name in ("AutoContrast", "Contrast", "Color", "Sharpness", "Brightness") else 0
        )


def test_solarize_at_its_ends():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(3, 3, 1, 1)
    got = colour.solarize(images, torch.tensor([256.0, 255.0, 0.0]))
    assert torch.equal(got[0], images[0]) and torch.equal(got[2], 255 - images[2])
    assert (got[1] != images[1]).sum() == 3 and got[1].max() == 254


def test_chain_is_crop_flip_policy_without_jitter():
    augment = build_augment(DataConfig(image_size=16, augment="deit", magnitude=7, normalise="cifar"))
    assert augment.crops_full_images and augment.flip is not None
    assert augment.jitter is None and augment.pad_crop is None
    assert augment.policy == TimmRandAugment(7, fill=(125, 123, 114))
    imagenet = build_augment(DataConfig(augment="deit")).policy
    assert imagenet == TimmRandAugment(9, fill=FILL)


def test_outside_is_filled_with_the_mean():
    white = torch.full((400, 3, 16, 16), 255, dtype=torch.uint8)
    augment = build_augment(DataConfig(image_size=16, augment="deit", normalise="half"))
    plan = augment.policy.sample(400, 16, 16, seeded(4))
    plan.operations[:] = OPERATIONS.index("TranslateX")
    plan.magnitudes[:] = 7.0
    moved = augment.policy.apply(white, plan)
    assert set(moved.unique().tolist()) == {128, 255}


@pytest.mark.parametrize("magnitude", [11, 30])
def test_magnitudes_above_timms_scale_are_refused(magnitude):
    build_augment(DataConfig(augment="randaugment", magnitude=magnitude))
    build_augment(DataConfig(augment="deit", magnitude=10))
    with pytest.raises(ConfigError, match=r"0 to 10.*data\.magnitude"):
        build_augment(DataConfig(augment="deit", magnitude=magnitude))


def small_arrays(n=12, shape=(8, 8)):
    pixels = np.random.default_rng(0).integers(0, 256, (n, *shape, 3), dtype=np.uint8)
    return ArraySource(pixels, np.arange(n) % 3, ["a", "b", "c"])


def settings(**more):
    return DataConfig(**{"image_size": 112, "batch_size": 6, "workers": 0, "eval_batch_size": 5, **more})


@pytest.mark.parametrize("augment", ["deit", "imagenet"])
@pytest.mark.parametrize("memory", ["always", "never", "auto"])
def test_small_images_stay_small_in_memory_and_crops_are_enlarged(augment, memory):
    source = small_arrays()
    loaders = loaders_from_splits({"train": source, "test": source}, settings(augment=augment, memory=memory))
    held = loaders.train.images
    assert (held is not None) == (memory == "always")
    if held is not None:
        assert torch.equal(held, torch.from_numpy(source.images).permute(0, 3, 1, 2))
    batches = list(loaders.train.epoch(0))
    assert [tuple(b.inputs.shape) for b in batches] == [(6, 3, 112, 112)] * 2
    test = list(loaders.evals["test"])
    assert loaders.evals["test"].images is None
    want = torch.stack([loaders.preprocess(source.load(i)) for i in range(12)])
    assert want.shape == (12, 3, 112, 112)
    assert torch.equal(torch.cat([b.inputs for b in test]), want)


def test_a_training_that_does_not_crop_still_has_its_images_in_full_size():
    source = small_arrays()
    held = loaders_from_splits({"train": source}, settings(augment="weak", memory="always")).train.images
    assert held.shape == (12, 3, 112, 112)


def test_memory_and_workers_crop_small_images_alike():
    n = 400
    base = small_arrays(1).images
    base[:, :4] //= 3
    source = ArraySource(np.repeat(base, n, 0), np.arange(n) % 2)
    got = [
        next(
            loaders_from_splits(
                {"train": source}, settings(image_size=24, batch_size=n, augment="deit", memory=memory)
            ).train.epoch(0)
        ).inputs
        for memory in ("always", "never")
    ]
    for statistic in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x[:, 0, 5, 5]):
        a, b = map(statistic, got)
        assert abs(a.mean() - b.mean()) <= 4.5 * ((a.var() + b.var()) / n).sqrt()
        assert abs(a.std() / b.std() - 1) < 0.2


def test_stored_side(tmp_path):
    assert stored_side(small_arrays(), 32, full_resolution=True) == 8
    assert stored_side(small_arrays(shape=(8, 11)), 32, full_resolution=True) == 8
    assert stored_side(small_arrays(), 32) == 32
    assert stored_side(small_arrays(shape=(40, 50)), 32, full_resolution=True) == 32
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, side in zip(paths, (6, 9, 7), strict=True):
        Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(path)
    assert stored_side(FileSource(paths, [0, 1, 0]), 32, full_resolution=True) == 9
