"""Batch: the thing that flows."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from relatum import Batch


def _batch(**more):
    return Batch(torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 0]), torch.arange(4), **more)


def test_length_is_the_number_of_samples():
    assert len(_batch()) == 4


def test_to_moves_everything():
    batch = _batch(domain=torch.zeros(4, dtype=torch.long), mask=torch.ones(4, 6, 6)).to("meta")
    for part in (batch.inputs, batch.targets, batch.index, batch.domain, batch.mask):
        assert part.device.type == "meta"


def test_what_is_not_there_stays_away():
    moved = _batch().to("cpu")
    assert moved.domain is None
    assert moved.mask is None


def test_channels_last_only_when_asked_and_only_for_images():
    batch = _batch()
    assert batch.to("cpu").inputs.is_contiguous()
    changed = batch.to("cpu", channels_last=True)
    assert changed.inputs.is_contiguous(memory_format=torch.channels_last)
    assert not changed.inputs.is_contiguous()
    assert torch.equal(changed.inputs, batch.inputs)
    flat = Batch(torch.randn(4, 5), torch.zeros(4, dtype=torch.long), torch.arange(4))
    assert torch.equal(flat.to("cpu", channels_last=True).inputs, flat.inputs)


def test_a_batch_cannot_be_changed_by_accident():
    with pytest.raises(FrozenInstanceError):
        _batch().targets = torch.zeros(4)
