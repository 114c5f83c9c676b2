from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.config import DataConfig
from relatum.data.samplers import (
    SAMPLERS,
    ClassBalancedSampler,
    Deferred,
    EffectiveNumberSampler,
    InstanceSampler,
    ProgressiveSampler,
    RepeatFactorSampler,
    build_sampler,
    warn_double_correction,
)
from relatum.errors import ConfigError, DataError

COUNTS = (400, 120, 40, 0, 9, 1)
TARGETS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), COUNTS))
ALL = tuple(SAMPLERS)
WEIGHTED = ("class-balanced", "square-root", "progressive", "effective-number")


def _of(k):
    return np.flatnonzero(np.equal(TARGETS, k))


def _make(name, **settings_):
    return SAMPLERS[name](TARGETS, 6, **{"seed": 3, "epochs": 5, **settings_})


def test_every_name_of_the_config_has_a_sampler():
    from typing import get_args

    from relatum.config import SamplerName

    assert set(SAMPLERS) == set(get_args(SamplerName))


@pytest.mark.parametrize("name", ALL)
def test_order_is_a_pure_function_of_seed_and_epoch(name):
    first = _make(name).indices(2)
    assert not np.array_equal(first, _make(name).indices(3))
    assert not np.array_equal(first, _make(name, seed=4).indices(2))
    again = _make(name)
    again.indices(0)
    np.random.seed(99)
    assert np.array_equal(first, again.indices(2))
    assert first.dtype == np.int64


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("world", [1, 2, 3, 7, 601])
def test_ranks_have_equal_length_and_cover_the_epoch(name, world):
    whole = _make(name).order(1)
    parts = [_make(name, rank=r, world=world) for r in range(world)]
    dealt = [p.indices(1) for p in parts]
    assert {len(d) for d in dealt} == {len(p) for p in parts} == {-(-len(whole) // world)}
    together = np.stack(dealt, axis=1).reshape(-1)
    assert np.array_equal(together[: len(whole)], whole)
    # what is left over is the start of the order again
    assert np.array_equal(together[len(whole) :], np.resize(whole, len(together))[len(whole) :])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 60), world=st.integers(1, 9), epoch=st.integers(0, 3))
def test_instance_sampling_sees_every_sample_once(n, world, epoch):
    targets = np.arange(n) % 3
    seen = np.concatenate(
        [InstanceSampler(targets, 3, seed=1, rank=r, world=world).indices(epoch) for r in range(world)]
    )
    times = np.bincount(seen, minlength=n)
    assert times.min() >= 1
    assert len(seen) - n < world
    assert np.array_equal(np.sort(InstanceSampler(targets, 3, seed=1).indices(epoch)), np.arange(n))


def _expected(name):
    n = np.array(COUNTS, dtype=np.float64)
    present = (n > 0) / 5
    if name == "class-balanced":
        return present
    if name == "square-root":
        return np.sqrt(n) / np.sqrt(n).sum()
    if name == "progressive":  # epoch 1 of 0..4
        return 0.75 * n / n.sum() + 0.25 * present
    weight = np.array([c * (1 - 0.9999) / (1 - 0.9999**c) if c else 0.0 for c in COUNTS])
    return weight / weight.sum()


@pytest.mark.parametrize("name", WEIGHTED)
def test_class_marginals(name):
    expected = _expected(name)
    assert np.allclose(_make(name).class_probabilities(1), expected)
    seeds = 30
    drawn = np.concatenate([_make(name, seed=s).indices(1) for s in range(seeds)])
    assert len(drawn) == seeds * len(TARGETS)
    share = np.bincount(TARGETS[drawn], minlength=6) / len(drawn)
    spread = np.sqrt(expected * (1 - expected) / len(drawn))
    assert np.all(np.abs(share - expected) <= 4.5 * spread)
    # the tolerance is narrow enough to tell the samplers from instance sampling
    assert np.any(np.abs(np.array(COUNTS) / len(TARGETS) - expected) > 9 * spread)


@pytest.mark.parametrize("name", WEIGHTED)
def test_samples_of_a_class_are_used_evenly(name):
    times = np.bincount(_make(name).indices(4), minlength=len(TARGETS))
    for k, count in enumerate(COUNTS):
        if count:
            assert np.ptp(times[_of(k)]) <= 1


def test_progress_runs_from_instance_to_balanced():
    sampler = _make("progressive")
    n = np.array(COUNTS)
    assert np.allclose(sampler.class_probabilities(0), n / n.sum())
    assert np.allclose(sampler.class_probabilities(4), (n > 0) / 5)
    assert np.allclose(sampler.class_probabilities(9), (n > 0) / 5)
    assert np.allclose(ProgressiveSampler(TARGETS, 6, epochs=1).class_probabilities(0), n / n.sum())


def test_effective_number_lies_between_instance_and_balanced():
    n = np.array(COUNTS)
    instance = EffectiveNumberSampler(TARGETS, 6, beta=0.0).class_probabilities(0)
    balanced = EffectiveNumberSampler(TARGETS, 6, beta=1 - 1e-9).class_probabilities(0)
    assert np.allclose(instance, n / n.sum())
    assert np.allclose(balanced, (n > 0) / 5, atol=1e-4)
    with pytest.raises(ConfigError, match="beta"):
        EffectiveNumberSampler(TARGETS, 6, beta=1.0)


def test_repeat_factors_are_met_on_average():
    sampler = _make("repeat-factor")
    factor = np.array([max(1.0, np.sqrt((1 / 5) / (c / 570))) if c else 0.0 for c in COUNTS])
    epochs = 200
    times = np.zeros(len(TARGETS))
    for epoch in range(epochs):
        seen = np.bincount(sampler.indices(epoch), minlength=len(TARGETS))
        assert seen.min() >= 1
        assert np.all(seen[_of(0)] <= 2)  # factor 1, plus at most one from wrapping around
        for k in (1, 2, 4, 5):
            assert set(seen[_of(k)]) <= {int(factor[k]), int(factor[k]) + 1, int(factor[k]) + 2}
        times += seen
    for k in (0, 1, 2, 4, 5):
        fraction = factor[k] % 1
        spread = np.sqrt(fraction * (1 - fraction) / (epochs * COUNTS[k]))
        assert abs(times[_of(k)].mean() / epochs - factor[k]) <= 4.5 * spread + 1 / 400
    assert len(sampler) == int(np.ceil((factor * np.array(COUNTS)).sum()))


def test_repeat_factor_threshold():
    assert len(RepeatFactorSampler(TARGETS, 6, threshold=1e-9)) == len(TARGETS)
    assert len(RepeatFactorSampler(TARGETS, 6, threshold=1.0)) > len(RepeatFactorSampler(TARGETS, 6))
    with pytest.raises(ConfigError, match="threshold"):
        RepeatFactorSampler(TARGETS, 6, threshold=0.0)


def test_deferred_switches_at_its_epoch():
    first, then = InstanceSampler(TARGETS, 6, seed=1), ClassBalancedSampler(TARGETS, 6, seed=1)
    deferred = Deferred(first, then, start=0.8, epochs=10)
    for epoch, which in ((0, first), (7, first), (8, then), (9, then)):
        assert np.array_equal(deferred.indices(epoch), which.indices(epoch))
    assert not np.array_equal(first.indices(8), then.indices(8))
    with pytest.raises(ConfigError, match="same size"):
        Deferred(first, RepeatFactorSampler(TARGETS, 6), 0.5, 10)


@pytest.mark.parametrize("name", ALL)
def test_build_makes_what_is_asked_for(name):
    config = DataConfig(sampler=name)
    settings_ = {"seed": 2, "epochs": 4, "rank": 1, "world": 3}
    built = build_sampler(config, TARGETS, 6, **settings_)
    assert type(built) is SAMPLERS[name]
    assert np.array_equal(built.indices(1), SAMPLERS[name](TARGETS, 6, **settings_).indices(1))
    deferred = build_sampler(replace(config, drs_start=0.5), TARGETS, 6, **settings_)
    assert np.array_equal(deferred.indices(1), built.indices(1))
    assert isinstance(deferred, Deferred)
    assert isinstance(deferred.then, ClassBalancedSampler)
    assert len(deferred.indices(3)) == len(deferred) == len(built)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'square-root'"):
        build_sampler(DataConfig(sampler="square-rot"), TARGETS, 6)
    with pytest.raises(ConfigError, match="rank 2"):
        InstanceSampler(TARGETS, 6, rank=2, world=2)
    with pytest.raises(DataError, match="no training samples"):
        InstanceSampler([], 6)


@pytest.mark.parametrize("name", [*ALL, "deferred"])
def test_double_correction_is_warned_about(name):
    if name == "instance":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_double_correction(name, objective_corrects=True)
        return
    with pytest.warns(UserWarning, match=f"double correction: the {name} sampler"):
        warn_double_correction(name, objective_corrects=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_double_correction(name, objective_corrects=False)
        warn_double_correction(name, objective_corrects=True, allow_double=True)
