"""Mixup and cutmix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum import build_loaders
from relatum.batch import Batch
from relatum.config import DataConfig
from relatum.data.augment import Mixer
from relatum.data.plain import as_evaluated, without_mixing
from relatum.errors import ConfigError


def make_batch(n, classes=4, side=8):
    g = torch.Generator().manual_seed(n)
    targets = torch.randint(classes, (n,), generator=g)
    return Batch(torch.randn(n, 3, side, side, generator=g), targets, torch.arange(n))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.sampled_from([(1.0, 0.0), (0.0, 1.0), (0.4, 0.7)]), st.integers(0, 99))
def test_rows_sum_to_one_and_the_batch_is_not_changed(n, alphas, seed):
    batch = make_batch(n)
    inputs = batch.inputs.clone()
    mixed = Mixer(*alphas, num_classes=4, label_smoothing=0.1)(batch, seeded(seed))
    assert mixed.targets.shape == (n, 4) and mixed.targets.dtype == torch.float32
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(n))
    assert torch.equal(batch.inputs, inputs)
    assert torch.equal(mixed.index, batch.index)


def test_mixup_mixes_inputs_and_targets_by_the_same_share():
    batch = make_batch(7, classes=7)
    batch = Batch(batch.inputs, torch.arange(7), batch.index)  # a class each: targets tell partner and share
    mixed = Mixer(1.0, 0.0, 7)(batch, seeded(3))
    share = mixed.targets.diagonal().min()
    for i in range(7):
        partner = int(mixed.targets[i].clone().index_fill_(0, torch.tensor(i), -1).argmax())
        if mixed.targets[i, i] > 1 - 1e-6:
            partner = i
        want = share * batch.inputs[i] + (1 - share) * batch.inputs[partner]
        torch.testing.assert_close(mixed.inputs[i], want, rtol=1e-5, atol=1e-5)
    assert not torch.equal(mixed.inputs, batch.inputs)


def test_cutmix_targets_are_the_true_areas():
    seen = set()
    for seed in range(60):
        batch = Batch(torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 8, 8), torch.arange(5), torch.arange(5))
        mixed = Mixer(0.0, 1.0, 5)(batch, seeded(seed))
        for i in range(5):
            area = torch.bincount(mixed.inputs[i, 0].long().flatten(), minlength=5) / 64
            torch.testing.assert_close(mixed.targets[i], area)
            seen.add(float(area[i]))
    assert len(seen) > 10


def test_both_on_takes_each_by_a_fair_coin():
    batch = Batch(torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 8, 8), torch.arange(4), torch.arange(4))
    mixer = Mixer(5.0, 5.0, 4)
    whole = sum(bool((x.inputs == x.inputs.round()).all()) for x in (mixer(batch, seeded(s)) for s in range(300)))
    assert 105 < whole < 195  # cutmix leaves the pixel values whole, mixup does not


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_share_is_beta_distributed(alpha):
    batch = Batch(torch.zeros(2, 3, 2, 2), torch.arange(2), torch.arange(2))
    mixer = Mixer(alpha, 0.0, 2)
    drawn = [mixer(batch, seeded(s)).targets[0, 0] for s in range(800)]
    shares = torch.stack([s for s in drawn if s < 1])  # a sample that is its own partner tells nothing
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(shares.mean() - 0.5) < 5 * (variance / len(shares)) ** 0.5
    assert abs(shares.var() / variance - 1) < 0.25


def test_same_generator_same_mix_and_soft_targets_mix_too():
    batch, mixer = make_batch(5), Mixer(0.5, 0.5, 4)
    a, b, c = mixer(batch, seeded(1)), mixer(batch, seeded(1)), mixer(batch, seeded(2))
    assert not torch.equal(a.targets, c.targets)
    assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
    soft = Batch(batch.inputs, torch.nn.functional.one_hot(batch.targets, 4).float(), batch.index)
    assert torch.equal(mixer(soft, seeded(1)).targets, a.targets)


def test_label_smoothing_spreads_over_all_classes():
    soft = Mixer(1.0, 0.0, 4, label_smoothing=0.2).soften(torch.tensor([2]))
    torch.testing.assert_close(soft, torch.tensor([[0.05, 0.05, 0.85, 0.05]]))


@pytest.mark.parametrize("wrong", [(0.0, 0.0, 4, 0.0), (-1.0, 1.0, 4, 0.0), (1.0, 0.0, 4, 1.0)])
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(ConfigError):
        Mixer(*wrong)


def test_a_share_of_the_batches_is_mixed_and_the_others_come_as_they_were():
    batch, mixer = make_batch(6), Mixer(1.0, 0.0, 4, rate=0.3)
    found = [mixer(batch, seeded(seed)) for seed in range(400)]
    alone = [mixed for mixed in found if mixed is batch]
    assert 0.62 < len(alone) / len(found) < 0.78
    assert all(mixed.targets.shape == (6, 4) for mixed in found if mixed is not batch)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_a_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ConfigError, match="rate must be above 0 and at most 1"):
        Mixer(1.0, 0.0, 4, rate=rate)


def loader(epochs=10, **options):
    return build_loaders(DataConfig(kind="shapes", largest=20, batch_size=16, **options), epochs=epochs).train


@pytest.mark.parametrize("memory", ["always", "never"])
def test_mixing_rests_from_its_share_of_the_epochs_on(memory):
    train = loader(cutmix=1.0, mix_end=0.7, memory=memory, workers=0)
    shapes = [next(iter(train.epoch(epoch))).targets.ndim for epoch in range(10)]
    assert shapes == [2] * 7 + [1] * 3


def test_the_rate_reaches_the_batches_and_zero_mixes_none():
    kinds = {batch.targets.ndim for epoch in range(10) for batch in loader(mixup=1.0, mix_rate=0.5).epoch(epoch)}
    assert kinds == {1, 2}
    assert {batch.targets.ndim for batch in loader(mixup=1.0, mix_rate=0.0).epoch(0)} == {1}


def test_batches_without_rate_and_end_are_those_of_before():
    whole, ends = loader(mixup=1.0), loader(mixup=1.0, mix_end=0.5)
    assert torch.equal(next(iter(whole.epoch(4))).inputs, next(iter(ends.epoch(4))).inputs)


@pytest.mark.parametrize("name", ["mix_rate", "mix_end"])
def test_settings_of_mixing_without_mixing_are_refused(name):
    with pytest.raises(ConfigError, match=rf"data.{name} is 0.5, but nothing is mixed; set data.mixup"):
        loader(**{name: 0.5})


def test_plain_data_has_no_mixing_left():
    mixed = DataConfig(
        mixup=0.8, cutmix=1.0, mix_rate=0.5, mix_end=0.9, augment="autoaugment", policy_end=0.8, repeats=3
    )
    assert without_mixing(mixed) == DataConfig(augment="autoaugment", policy_end=0.8, repeats=3)
    assert as_evaluated(mixed) == DataConfig(augment="none")
