"""Post-hoc logit adjustment."""

from __future__ import annotations

import math

import pytest
import torch

from relatum.errors import ConfigError, DataError
from relatum.evaluate import adjust_logits
from relatum.objectives import CrossEntropy, LogitAdjusted
from relatum.prior import ClassPrior

COUNTS = [80, 15, 5, 0]
LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_definition():
    n = [max(c, 1) for c in COUNTS]
    adjusted = adjust_logits(LOGITS, ClassPrior(COUNTS), 1.3)
    for row, expected in zip(adjusted.tolist(), LOGITS.tolist(), strict=True):
        assert row == pytest.approx([z - 1.3 * math.log(c / sum(n)) for z, c in zip(expected, n, strict=True)])


def test_test_prior_counts_where_it_is_not_uniform():
    uniform = adjust_logits(LOGITS, ClassPrior(COUNTS), 0.7)
    assert torch.equal(adjust_logits(LOGITS, ClassPrior(COUNTS, test_prior=[3, 3, 3, 3]), 0.7), uniform)
    skewed = adjust_logits(LOGITS, ClassPrior(COUNTS, test_prior=[1, 2, 3, 4]), 0.7)
    shift = [0.7 * math.log(q / 10) for q in (1, 2, 3, 4)]
    torch.testing.assert_close(skewed, uniform + torch.tensor(shift, dtype=torch.float64))


def test_same_prior_at_test_changes_nothing():
    prior = ClassPrior([80, 15, 5], test_prior=[0.8, 0.15, 0.05])
    assert not torch.allclose(adjust_logits(LOGITS[:, :3], ClassPrior([80, 15, 5])), LOGITS[:, :3])
    torch.testing.assert_close(adjust_logits(LOGITS[:, :3], prior), LOGITS[:, :3])


def test_undoes_the_training_time_adjustment():
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    prior = ClassPrior(COUNTS)
    loss = LogitAdjusted(prior, 1.3)(adjust_logits(LOGITS, prior, 1.3), labels)
    torch.testing.assert_close(loss, CrossEntropy()(LOGITS, labels), rtol=1e-6, atol=1e-7)


def test_raises_rare_classes_and_keeps_shape_and_precision():
    prior = ClassPrior(COUNTS)
    flat = torch.zeros(2, 5, 4, dtype=torch.bfloat16)
    adjusted = adjust_logits(flat, prior)
    assert adjusted.shape == flat.shape and adjusted.dtype == torch.float32
    assert (adjusted[..., 0] < adjusted[..., 1]).all() and (adjusted[..., 1] < adjusted[..., 2]).all()
    assert torch.equal(adjust_logits(LOGITS, prior, 0.0), LOGITS)


def test_errors():
    with pytest.raises(DataError, match=r"logits of 4 classes.*counts of 3"):
        adjust_logits(LOGITS, ClassPrior([1, 2, 3]))
    with pytest.raises(ConfigError, match="tau"):
        adjust_logits(LOGITS, ClassPrior(COUNTS), math.inf)
