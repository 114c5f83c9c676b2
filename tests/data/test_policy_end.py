"""AutoAugment and RandAugment may rest in the last epochs, while all other augmentation goes on."""

from __future__ import annotations

import pytest
import torch

from relatum import build_loaders
from relatum.config import DataConfig, PretrainConfig, RunConfig
from relatum.data.augment.policies import AutoAugment
from relatum.data.sizes import first_epoch_at
from relatum.errors import ConfigError
from relatum.recipes.pretraining_settings import pretrain_data


def loader(epochs=10, **options):
    data = DataConfig(kind="shapes", largest=20, batch_size=16, augment="autoaugment", cutout=8, **options)
    return build_loaders(data, epochs=epochs).train


@pytest.fixture
def epochs_with_policy(monkeypatch):
    """Epochs, of ten, in which the policy is applied."""
    applied = []
    real = AutoAugment.apply

    def noted(self, images, drawn):
        applied.append(True)
        return real(self, images, drawn)

    monkeypatch.setattr(AutoAugment, "apply", noted)

    def of(train):
        found = []
        for epoch in range(10):
            applied.clear()
            next(iter(train.epoch(epoch)))
            found += [epoch] if applied else []
        return found

    return of


@pytest.mark.parametrize(("end", "last"), [(0.0, 0), (0.7, 7), (0.75, 8), (1.0, 10)])
@pytest.mark.parametrize("memory", ["always", "never"])
def test_the_policy_rests_from_its_share_of_the_epochs_on(epochs_with_policy, end, last, memory):
    assert epochs_with_policy(loader(policy_end=end, memory=memory, workers=0)) == list(range(last))


def test_the_other_parts_go_on():
    calm = loader(policy_end=0.5).augment_at(9)
    assert calm.policy is None and calm.pad_crop is not None and calm.flip is not None and calm.cutout is not None


def test_before_the_end_batches_are_those_of_a_policy_that_stays():
    stays, ends = loader(), loader(policy_end=0.5)
    assert torch.equal(next(iter(stays.epoch(4))).inputs, next(iter(ends.epoch(4))).inputs)
    assert not torch.equal(next(iter(stays.epoch(5))).inputs, next(iter(ends.epoch(5))).inputs)


def test_without_a_policy_nothing_could_end():
    data = DataConfig(kind="shapes", largest=20, augment="weak", policy_end=0.5)
    with pytest.raises(ConfigError, match=r"data.policy_end is 0.5, but data.augment weak has no policy.*autoaugment"):
        build_loaders(data, epochs=10)


def test_masked_pretraining_has_no_policy_and_does_not_mind():
    data = DataConfig(kind="shapes", augment="autoaugment", policy_end=0.5)
    first = pretrain_data(RunConfig(data=data, pretrain=PretrainConfig(method="mae")))
    assert first.policy_end == 1 and first.augment == "crop"


def test_shares_that_binary_cannot_hold_begin_where_they_should():
    for epochs in (10, 100, 200):
        for part in range(epochs + 1):
            assert first_epoch_at(part / epochs, epochs) == part
    assert first_epoch_at(0.07, 100) == 7 and first_epoch_at(0.071, 100) == 8
