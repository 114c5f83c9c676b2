"""Repeated augmentation: views of an image side by side in a batch, in an epoch of unchanged length."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from relatum.config import DataConfig
from relatum.data.loaders import loaders_from_splits
from relatum.data.samplers import SAMPLERS, InstanceSampler, build_sampler
from relatum.data.source import ArraySource
from relatum.errors import ConfigError

TARGETS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), (60, 20, 9, 3, 1)))
ALL = (*SAMPLERS, "deferred")


def make(name, views, **more):
    config = DataConfig(sampler="instance", drs_start=0.5, repeats=views)
    if name != "deferred":
        config = DataConfig(sampler=name, repeats=views)
    return build_sampler(config, TARGETS, 5, **{"seed": 3, "epochs": 4, **more})


def reference(order, views):
    """Each sample of the order `views` times in turn, until the epoch is full."""
    repeated = []
    for sample in order.tolist():
        repeated += [sample] * views
    return repeated[: len(order)]


@pytest.mark.parametrize("views", [2, 3, 5])
@pytest.mark.parametrize("name", ALL)
def test_every_sampler_repeats_the_start_of_its_order(name, views):
    plain, repeated = make(name, 1), make(name, views)
    assert len(plain) == len(repeated) and repeated.name == plain.name and repeated.balances == plain.balances
    for epoch in (0, 3):
        assert not np.array_equal(plain.indices(epoch), repeated.indices(epoch))
        assert repeated.indices(epoch).tolist() == reference(plain.indices(epoch), views)
        assert repeated.indices(epoch).dtype == np.int64


@pytest.mark.parametrize("name", ALL)
def test_one_view_is_the_plain_order(name):
    assert not np.array_equal(make(name, 2).indices(1), make(name, 1).indices(1))
    assert np.array_equal(make(name, 1).indices(1), make(name, 1).order(1))


def test_a_third_of_the_images_is_seen_and_another_third_in_the_next_epoch():
    sampler = InstanceSampler(np.arange(300) % 7, 7, seed=1, views=3)
    seen = [Counter(sampler.indices(epoch).tolist()) for epoch in range(40)]
    assert all(len(c) == 100 and set(c.values()) == {3} for c in seen)
    overlap = np.mean([len(set(a) & set(b)) for a, b in pairwise(seen)])
    assert 25 < overlap < 42  # independent thirds share a ninth of 300
    assert len(set().union(*seen)) == 300


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["instance", "repeat-factor", "deferred"])
def test_ranks_are_dealt_the_repeated_order(name, world):
    whole = make(name, 3).indices(1)
    dealt = [make(name, 3, rank=r, world=world).indices(1) for r in range(world)]
    together = np.stack(dealt, axis=1).reshape(-1)
    assert np.array_equal(together[: len(whole)], whole)
    if world == 3:  # as many ranks as views: each rank has one view of every image
        full = len(whole) // 3
        assert all(np.array_equal(d[:full], dealt[0][:full]) for d in dealt)


def source(n=24, side=12):
    pixels = np.random.default_rng(5).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return ArraySource(pixels, np.arange(n) % 3, ["a", "b", "c"])


def config(**more):
    return DataConfig(**{"image_size": 12, "batch_size": 6, "workers": 0, "repeats": 3, **more})


def train(settings, **more):
    return loaders_from_splits({"train": source()}, settings, **{"seed": 2, "epochs": 3, **more}).train


PATHS = [{"memory": "always"}, {"memory": "never"}, {"memory": "never", "workers": 2}]


@pytest.mark.parametrize("more", PATHS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_views_stand_in_one_global_batch_and_differ(more, world):
    settings = config(augment="deit", **more)
    ranks = [list(train(settings, rank=r, world=world).epoch(0)) for r in range(world)]
    assert {len(batches) for batches in ranks} == {24 // world // 6}
    drawn = []
    for step in zip(*ranks, strict=True):
        index = torch.cat([b.index for b in step])
        counts = Counter(index.tolist())
        assert set(counts.values()) == {3}
        drawn += list(counts)
        views = torch.cat([b.inputs for b in step])
        for image in counts:
            assert len({tuple(x.flatten().tolist()) for x in views[index == image]}) == 3
    assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize("more", PATHS)
def test_resuming_in_the_middle_of_an_epoch(more):
    settings = config(augment="weak", mixup=0.8, cutmix=1.0, erasing=0.25, batch_size=5, **more)
    full = list(train(settings).epoch(1))
    assert len(full) == 4 and full[0].targets.shape == (5, 3)
    assert not torch.equal(full[1].inputs, list(train(settings).epoch(2))[1].inputs)
    for start in range(4):
        rest = list(train(settings).epoch(1, start))
        assert len(rest) == 4 - start
        for a, b in zip(rest, full[start:], strict=True):
            assert all(map(torch.equal, (a.inputs, a.targets, a.index), (b.inputs, b.targets, b.index)))


@pytest.mark.parametrize("more", PATHS[:2])
def test_mixup_mixes_views_with_partners_of_the_batch(more):
    plain, mixed = (next(train(config(augment="none", mixup=m, **more)).epoch(0)) for m in (0.0, 1.0))
    assert torch.equal(plain.index, mixed.index) and not torch.equal(plain.inputs, mixed.inputs)
    assert torch.allclose(mixed.targets.sum(1), torch.ones(6))
    present = torch.nn.functional.one_hot(plain.targets, 3).amax(0)
    assert (mixed.targets * (1 - present) == 0).all()


def test_more_views_than_a_batch_holds_are_refused():
    train(config(batch_size=3, repeats=6), rank=1, world=2)
    with pytest.raises(ConfigError, match=r"data\.repeats.*batch_size"):
        train(config(batch_size=3, repeats=7), rank=1, world=2)
    with pytest.raises(ConfigError, match=r"data\.repeats"):
        InstanceSampler(TARGETS, 5, views=0)
