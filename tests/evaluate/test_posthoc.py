"""Logit adjustment and τ-normalisation."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate import adjust_logits, tau_normalised
from relatum.prior import ClassPrior
from relatum.relation import BatchAttention


def _seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def _inputs(samples):
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(2))


def _small_model():
    return _seeded(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.head_dist, self.unused = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)

    def get_classifier(self):
        return self.head, self.head_dist

    def forward(self, x):
        return self.head(x), self.head_dist(x)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_adjustment_equals_its_definition(tau):
    counts = [500, 60, 3]
    logits = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = [[z - tau * math.log(n / 563) for z, n in zip(row, counts, strict=True)] for row in logits.tolist()]
    adjusted = adjust_logits(logits, ClassPrior(counts), tau)
    assert adjusted.numpy() == pytest.approx(np.array(expected), abs=1e-13)
    assert torch.equal(adjusted, logits) == (tau == 0)


def test_adjustment_towards_another_test_prior():
    logits = torch.zeros(1, 2, dtype=torch.float64)
    prior = ClassPrior([90, 10], test_prior=[1, 3])
    expected = [-0.7 * math.log(0.9) + 0.7 * math.log(0.25), -0.7 * math.log(0.1) + 0.7 * math.log(0.75)]
    assert adjust_logits(logits, prior, 0.7)[0].tolist() == pytest.approx(expected)
    same = ClassPrior([90, 10], test_prior=[0.9, 0.1])
    assert adjust_logits(logits, same, 1.0)[0].tolist() == pytest.approx([0, 0])


def test_adjustment_is_finite_for_unseen_classes_and_keeps_the_type():
    adjusted = adjust_logits(torch.zeros(2, 2), ClassPrior([7, 0]), 1.0)
    assert adjusted.dtype == torch.float32 and torch.isfinite(adjusted).all()
    assert adjusted[0, 1] > adjusted[0, 0]


def test_adjustment_refuses_other_classes_and_strengths():
    with pytest.raises(DataError, match="2 classes cannot be adjusted by counts of 3"):
        adjust_logits(torch.zeros(1, 2), ClassPrior([1, 2, 3]), 1.0)
    with pytest.raises(ConfigError, match="finite"):
        adjust_logits(torch.zeros(1, 2), ClassPrior([1, 2]), math.nan)


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0])
def test_tau_norm_equals_its_definition(tau):
    model, x = _small_model().double(), _inputs(6).double()
    weight = model[2].weight.detach().numpy()
    features = model[:2](x).detach().numpy()
    rows = [row / math.sqrt(sum(v * v for v in row)) ** tau for row in weight.copy()]
    with tau_normalised(model, tau) as same:
        assert same is model
        assert model(x).detach().numpy() == pytest.approx(features @ np.stack(rows).T, abs=1e-12)


@pytest.mark.parametrize("fails", [False, True])
def test_tau_norm_restores_every_bit(fails):
    model, x = _small_model(), _inputs(6)
    before, output = copy.deepcopy(model.state_dict()), model(x)
    pointers = [p.data_ptr() for p in model.parameters()]
    try:
        with tau_normalised(model, 0.9):
            assert not torch.equal(model(x), output)
            assert torch.equal(model[0].weight, before["0.weight"])
            if fails:
                raise RuntimeError("on purpose")
    except RuntimeError:
        assert fails
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert torch.equal(model(x), output)


def test_tau_norm_reaches_all_heads_that_get_classifier_names():
    model, x = _seeded(TwoHeads), _inputs(3)
    before = [head.clone() for head in model(x)]
    unused = model.unused.weight.clone()
    with tau_normalised(model, 1.0):
        assert all(not torch.equal(now, old) for now, old in zip(model(x), before, strict=True))
        assert model.head_dist.weight.norm(dim=1).tolist() == pytest.approx([1, 1, 1])
        assert torch.equal(model.unused.weight, unused)
    assert all(torch.equal(now, old) for now, old in zip(model(x), before, strict=True))


def test_tau_norm_survives_shared_heads_zero_rows_and_no_bias():
    model = TwoHeads()
    model.head_dist = model.head
    kept = model.head.weight.detach().clone()
    with tau_normalised(model, 1.0):
        assert model.head.weight.norm(dim=1).tolist() == pytest.approx([1, 1, 1])
    assert torch.equal(model.head.weight, kept)
    plain = nn.Sequential(nn.Linear(2, 3, bias=False))
    with torch.no_grad():
        plain[0].weight[1] = 0
    with tau_normalised(plain, 1.5):
        assert torch.isfinite(plain[0].weight).all() and not plain[0].weight[1].any()


def test_tau_norm_refuses_what_it_cannot_normalise():
    with pytest.raises(ModelError, match="no linear layer"), tau_normalised(nn.Sequential(nn.ReLU()), 1.0):
        pass
    headless = TwoHeads()
    headless.head = nn.Identity()
    with pytest.raises(ModelError, match="returns Identity"), tau_normalised(headless, 1.0):
        pass
    with pytest.raises(ConfigError, match="zero or more"), tau_normalised(_small_model(), -1.0):
        pass


class Direction(nn.Module):
    """A classifier that is not linear but has widths, as a cosine classifier has."""

    def __init__(self):
        super().__init__()
        self.in_features, self.out_features = 8, 4
        self.weight = nn.Parameter(torch.ones(4, 8))


def test_tau_norm_does_not_mistake_a_hidden_layer_for_the_classifier():
    with pytest.raises(ModelError, match="Direction"), tau_normalised(nn.Sequential(nn.Linear(5, 8), Direction()), 1.0):
        pass


def test_tau_norm_passes_over_the_layers_of_an_attached_relation():
    model = _small_model()
    model.add_module("relation", nn.ModuleList([BatchAttention(8, heads=2)]))
    assert any(isinstance(m, nn.Linear) for m in model.relation.modules())
    related = [p.detach().clone() for p in model.relation.parameters()]
    with tau_normalised(model, 1.0):
        assert model[2].weight.norm(dim=1).tolist() == pytest.approx([1] * 4)
        assert all(torch.equal(p, old) for p, old in zip(model.relation.parameters(), related, strict=True))
