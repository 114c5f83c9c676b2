"""Pad-crop, flip, random resized crop, Cutout, random erasing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.data.random_erasing import RandomErasing as TimmErasing
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from relatum.data.augment import Cutout, HorizontalFlip, PadCrop, RandomErasing, RandomResizedCrop


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n, h=16, w=16, seed=0):
    return torch.randint(1, 256, (n, 3, h, w), dtype=torch.uint8, generator=seeded(seed))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 5), st.integers(5, 12), st.integers(5, 12), st.integers(0, 999))
def test_pad_crop_equals_padding_then_cropping(n, pad, h, w, seed):
    images = noise(n, h, w, seed)
    crop = PadCrop(pad)
    corners = crop.sample(n, 16, 16, seeded(seed))
    got = crop.apply(images, corners)
    for i, (top, left) in enumerate(corners.tolist()):
        assert torch.equal(got[i], tv.crop(tv.pad(images[i], [pad] * 4), top, left, h, w))


def test_pad_crop_corners_are_uniform():
    corners = PadCrop(4).sample(81_000, 32, 32, seeded())
    counts = torch.bincount(corners[:, 0] * 9 + corners[:, 1], minlength=81)
    assert len(counts) == 81
    assert ((counts - 1000).abs() < 5 * 1000**0.5).all()


def test_flip_mirrors_half_of_the_images():
    flip = HorizontalFlip()
    mirrored = flip.sample(10_000, 32, 32, seeded())
    assert abs(mirrored.float().mean() - 0.5) < 0.025
    images = noise(6)
    chosen = torch.tensor([True, False, True, True, False, False])
    got = flip.apply(images, chosen)
    for i in range(6):
        assert torch.equal(got[i], tv.horizontal_flip(images[i]) if chosen[i] else images[i])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("sides", [(40, 52), (32, 32), (40, 80)])  # small ones are resized all at once
def test_resized_crop_equals_torchvision_for_the_same_box(interpolation, sides):
    images = noise(50, *sides)
    crop = RandomResizedCrop(24, interpolation=interpolation)
    boxes = crop.sample(50, *sides, seeded())
    boxes[:2] = torch.tensor([[0, 0, *sides], [sides[0] - 1, 0, 1, 2]])  # all of it, and nearly nothing
    with torch.autocast("cpu"):  # nothing of it reaches the pixels
        got = crop.apply(images, boxes)
    assert got.dtype == torch.uint8
    for i, box in enumerate(boxes.tolist()):
        mode = v2.InterpolationMode(interpolation)
        want = tv.resized_crop(images[i], *box, size=[24, 24], interpolation=mode, antialias=True)
        off = (got[i].int() - want.int()).abs()
        # Torch rounds its weights to integers, for bytes.
        assert off.max() <= 2 and (off > 1).float().mean() < 0.005


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0)])
@pytest.mark.parametrize("size", [(40, 40), (30, 90), (8, 200)])
def test_resized_crop_boxes_are_distributed_as_torchvisions(size, scale):
    n = 3000
    mine = RandomResizedCrop(24, scale=scale).sample(n, *size, seeded()).double().numpy()
    theirs = v2.RandomResizedCrop(24, scale=scale)
    image = torch.zeros(3, *size, dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [theirs.make_params([image]) for _ in range(n)]
    reference = np.array([[d["top"], d["left"], d["height"], d["width"]] for d in drawn], dtype=float)
    top, left, h, w = mine.T
    assert (top >= 0).all() and (left >= 0).all() and (top + h <= size[0]).all() and (left + w <= size[1]).all()
    for column in range(4):
        a, b = mine[:, column], reference[:, column]
        assert abs(a.mean() - b.mean()) <= 4.5 * np.sqrt((a.var() + b.var()) / n) + 1e-9
        assert np.abs(np.quantile(a, [0.1, 0.5, 0.9]) - np.quantile(b, [0.1, 0.5, 0.9])).max() <= 0.08 * max(size) + 1


def test_cutout_is_one_clipped_black_square():
    images = noise(200)
    cutout = Cutout(6)
    centres = cutout.sample(200, 16, 16, seeded())
    got = cutout.apply(images, centres)
    for i, (y, x) in enumerate(centres.tolist()):
        want = images[i].clone()
        want[:, max(y - 3, 0) : y + 3, max(x - 3, 0) : x + 3] = 0
        assert torch.equal(got[i], want)
    assert set(centres.flatten().tolist()) == set(range(16))


def test_erasing_fills_boxes_with_noise():
    erasing = RandomErasing(0.5)
    boxes = erasing.sample(2000, 20, 20, seeded())
    erased = boxes[:, 2] > 0
    assert abs(erased.float().mean() - 0.5) < 0.06
    images = torch.full((2000, 3, 20, 20), 9.0)
    got = erasing.apply(images, boxes, seeded(1))
    changed = (got != 9.0).all(1)
    for i, (top, left, h, w) in enumerate(boxes[:50].tolist()):
        inside = torch.zeros(20, 20, dtype=torch.bool)
        inside[top : top + h, left : left + w] = True
        assert torch.equal(changed[i], inside)
    values = got[changed.unsqueeze(1).expand_as(got)]
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert (images == 9.0).all()


def test_erased_areas_are_distributed_as_timms():
    n = 1500
    boxes = RandomErasing(1.0).sample(n, 20, 20, seeded())
    mine = (boxes[:, 2] * boxes[:, 3]).double()
    images = torch.full((n, 3, 20, 20), 9.0)
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        random.seed(0)
        TimmErasing(1.0, mode="pixel", device="cpu")(images)
    random.setstate(state)
    theirs = (images[:, 0] != 9.0).sum((1, 2)).double()
    assert abs(mine.mean() - theirs.mean()) < 4.5 * ((mine.var() + theirs.var()) / n).sqrt()
    assert (mine.quantile(0.9) - theirs.quantile(0.9)).abs() < 10
