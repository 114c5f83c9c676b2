"""Same-class pairs: every class of a batch is there twice, classes keep their frequencies, ranks keep their pairs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.config import DataConfig
from relatum.data.class_pairs import ClassPairsSampler
from relatum.data.loaders import loaders_from_splits
from relatum.data.samplers import InstanceSampler, build_sampler
from relatum.data.source import ArraySource
from relatum.errors import ConfigError

COUNTS = (61, 40, 17, 0, 9, 3, 1, 1)
TARGETS = np.random.default_rng(0).permutation(np.repeat(np.arange(8), COUNTS))


def make(targets=TARGETS, **options):
    return ClassPairsSampler(targets, 8, **{"seed": 3, **options})


def lonely(targets, batch):
    """Classes that a batch of samples holds once."""
    return [k for k, times in Counter(np.asarray(targets)[batch].tolist()).items() if times == 1]


@settings(max_examples=60, deadline=None)
@given(
    targets=st.lists(st.integers(0, 7), min_size=1, max_size=60),
    batch=st.integers(1, 6),
    world=st.integers(1, 4),
    views=st.integers(1, 3),
    epoch=st.integers(0, 4),
)
def test_in_every_batch_of_every_process_no_class_is_alone(targets, batch, world, views, epoch):
    for rank in range(world):
        order = make(targets, rank=rank, world=world, views=views).indices(epoch)
        assert len(order) % 2 == 0
        for start in range(0, len(order), 2 * batch):
            assert not lonely(targets, order[start : start + 2 * batch])


def test_without_it_classes_are_alone():
    order = InstanceSampler(TARGETS, 8, seed=3).indices(0)
    assert any(lonely(TARGETS, order[start : start + 16]) for start in range(0, 128, 16))


def test_an_epoch_is_instance_sampling_but_for_the_left_over_samples():
    for epoch in range(30):
        times = np.bincount(make().indices(epoch), minlength=len(TARGETS))
        seen = np.bincount(TARGETS[make().indices(epoch)], minlength=8)
        for k, count in enumerate(COUNTS):
            own = np.sort(times[np.flatnonzero(np.equal(TARGETS, k))])
            if count % 2 == 0:
                assert (own == 1).all() and seen[k] == count
            elif seen[k] > count:  # its left-over sample came with one that was there already
                assert own.tolist() == [1] * (count - 1) + [2]
            else:
                assert own.tolist() == [0] + [1] * (count - 1)


@pytest.mark.parametrize("missing", [0, 1], ids=["even", "odd"])
def test_classes_and_samples_keep_their_frequencies(missing):
    targets = TARGETS[: len(TARGETS) - missing]
    counts, epochs = np.bincount(targets, minlength=8), 4000
    sampler = make(targets)
    times = sum(np.bincount(sampler.indices(epoch), minlength=len(targets)) for epoch in range(epochs))
    assert times.sum() == epochs * (len(targets) // 2) * 2
    share = np.bincount(targets, weights=times, minlength=8) / times.sum()
    expected = counts / counts.sum()
    # An odd class has one sample more or less by a fair coin; an odd epoch, moreover, drops a pair now and then.
    spread = (1 + 2 * missing) / len(targets) / np.sqrt(epochs)
    assert np.all(np.abs(share - expected) <= 5 * spread)
    assert np.all(np.abs(times / epochs - 1) < 0.15), "no sample is forgotten"
    balanced = (counts > 0) / (counts > 0).sum()
    assert np.any(np.abs(balanced - expected) > 50 * spread), "the tolerance tells it from balanced sampling"


def test_a_class_with_one_sample_shows_it_twice_or_not_at_all():
    single = int(np.flatnonzero(np.equal(TARGETS, 6))[0])
    shown = [int((make().indices(epoch) == single).sum()) for epoch in range(400)]
    assert set(shown) == {0, 2}
    assert 160 <= shown.count(2) <= 240
    order = make().indices(shown.index(2))
    first, second = np.flatnonzero(order == single)
    assert first % 2 == 0 and second == first + 1, "side by side, in one batch"


@pytest.mark.parametrize("targets", [[0], [0, 1], [0, 1, 2], [5, 5], [5, 5, 5]])
def test_the_smallest_data_is_defined(targets):
    seen = Counter(index for epoch in range(60) for index in make(targets).indices(epoch).tolist())
    assert set(seen) == set(range(len(targets)))
    assert {len(make(targets).indices(epoch)) for epoch in range(9)} == {max(len(targets) // 2, 1) * 2}


@pytest.mark.parametrize("world", [2, 3])
def test_a_step_has_the_same_samples_in_any_number_of_processes(world):
    alone = make().indices(1)
    parts = [make(rank=rank, world=world).indices(1) for rank in range(world)]
    for step in range(len(TARGETS) // (4 * world)):
        together = np.concatenate([part[4 * step : 4 * step + 4] for part in parts])
        whole = alone[4 * world * step : 4 * world * (step + 1)]
        assert sorted(together.tolist()) == sorted(whole.tolist())


def test_pairs_are_made_anew_in_each_epoch():
    def pairs(epoch):
        return {frozenset(pair) for pair in make().indices(epoch).reshape(-1, 2).tolist()}

    assert pairs(0) == pairs(0)
    assert len(pairs(0) & pairs(1)) < 0.3 * len(pairs(0))


def test_an_odd_batch_would_part_a_pair_and_is_refused():
    with pytest.raises(ConfigError, match=r"class-pairs keeps 2 samples together.*batch_size 7"):
        build_sampler(DataConfig(sampler="class-pairs", batch_size=7), TARGETS, 8)
    assert build_sampler(DataConfig(sampler="instance", batch_size=7), TARGETS, 8).together == 1


# -- in the loader -----------------------------------------------------------------------------------------------------


def train(n=31, **more):
    pixels = np.random.default_rng(5).integers(0, 256, (n, 12, 12, 3), dtype=np.uint8)
    targets = np.minimum(np.arange(n) // 7, 4)
    source = ArraySource(pixels, targets, list("abcde"))
    options = {"image_size": 12, "batch_size": 6, "workers": 0, "sampler": "class-pairs", "augment": "weak", **more}
    return loaders_from_splits({"train": source}, DataConfig(**options), seed=2, epochs=3).train


@pytest.mark.parametrize("memory", ["always", "never"])
def test_resuming_in_the_middle_of_an_epoch(memory):
    full = list(train(memory=memory).epoch(1))
    assert len(full) == 5 and all(batch.targets.bincount().ne(1).all() for batch in full)
    assert not torch.equal(full[1].index, list(train(memory=memory).epoch(2))[1].index)
    for start in range(5):
        rest = list(train(memory=memory).epoch(1, start))
        assert len(rest) == 5 - start
        for a, b in zip(rest, full[start:], strict=True):
            assert all(map(torch.equal, (a.inputs, a.targets, a.index), (b.inputs, b.targets, b.index)))


@pytest.mark.parametrize("memory", ["always", "never"])
def test_the_only_image_of_a_class_comes_as_two_views(memory):
    batches = [batch for epoch in range(12) for batch in train(29, memory=memory).epoch(epoch)]  # class 4 has one image
    views = [batch.inputs[batch.targets == 4] for batch in batches if (batch.targets == 4).any()]
    assert views and all(len(pair) == 2 and not torch.equal(*pair) for pair in views)


def test_fewer_images_than_a_batch_are_one_batch_of_pairs():
    loader = train(9, batch_size=32)
    (batch,) = loader.epoch(0)
    assert len(batch) == loader.batch_size == 8 and batch.targets.bincount().ne(1).all()
