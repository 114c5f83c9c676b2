"""Tau-normalisation, logit adjustment and temperature: formulas, and what they are chosen by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relatum import ClassPrior
from relatum.classifier import (
    CachedFeatures,
    FeatureSet,
    LogitAdjustment,
    TauNorm,
    Temperature,
    best_temperature,
)
from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate import adjust_logits


def _balanced_accuracy(logits, targets):
    hits = (np.asarray(logits).argmax(1) == np.asarray(targets)).astype(float)
    return np.mean([hits[np.asarray(targets) == k].mean() for k in np.unique(targets)])


def _balanced_nll(logits, targets):
    z = np.asarray(logits, dtype=np.float64)
    losses = np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[np.arange(len(z)), targets]
    return np.mean([losses[targets == k].mean() for k in np.unique(targets)])


# -- tau-norm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0, 2.0])
def test_tau_norm_is_its_formula(features, head, tau):
    fitted = TauNorm(tau).fit(features, head)
    rows = head.weight.detach().double().numpy()
    np.testing.assert_allclose(
        fitted.weight.numpy(), rows / np.linalg.norm(rows, axis=1, keepdims=True) ** tau, rtol=1e-5
    )
    assert head.bias.abs().max() > 0.1
    assert torch.equal(fitted.bias, torch.zeros(3))


def test_tau_is_the_best_of_the_held_out_set(features, head):
    chosen = TauNorm().tuned(features, head).tau
    rows, held = head.weight.detach().double().numpy(), features.held

    def accuracy(tau):
        scaled = rows / np.linalg.norm(rows, axis=1, keepdims=True) ** tau
        return _balanced_accuracy(held.features.double().numpy() @ scaled.T, held.targets.numpy())

    taus = [step / 10 for step in range(21)]
    best = max(map(accuracy, taus))
    assert chosen in taus and min(map(accuracy, taus)) < best - 0.02
    assert accuracy(chosen) == pytest.approx(best, abs=0.004)  # a sample or two may fall to either side in float32
    assert torch.equal(TauNorm().fit(features, head).weight, TauNorm(chosen).fit(features, head).weight)


def test_what_is_reported_has_no_say(features, head):
    shuffled = {"test": FeatureSet(-features.reported["test"].features, features.reported["test"].targets)}
    other = CachedFeatures(features.train, features.held, "val", shuffled, features.prior)
    turned = CachedFeatures(features.train, shuffled["test"], "val", features.reported, features.prior)
    for tool in (TauNorm(), Temperature(), LogitAdjustment(None)):
        assert tool.tuned(other, head) == tool.tuned(features, head)
        assert tool.tuned(turned, head) != tool.tuned(features, head)  # the held-out set has


def test_equal_taus_give_the_smallest_and_zero_rows_are_harmless(features):
    dead = nn.Linear(4, 3)
    nn.init.zeros_(dead.weight)
    assert TauNorm().tuned(features, dead).tau == 0.0
    assert torch.equal(TauNorm(1.0).fit(features, dead).weight, torch.zeros(3, 4))


# -- logit adjustment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test_prior", [None, (0.2, 0.2, 0.6)])
def test_adjustment_in_the_bias_equals_adjustment_of_the_logits(features, head, test_prior):
    prior = ClassPrior(features.prior.counts, test_prior=test_prior)
    data = CachedFeatures(features.train, features.held, "val", features.reported, prior)
    fitted = LogitAdjustment(0.8).fit(data, head)
    x = features.held.features
    assert torch.equal(fitted.weight, head.weight)
    assert (fitted(x) - head(x)).abs().max() > 0.5
    torch.testing.assert_close(fitted(x), adjust_logits(head(x), prior, 0.8), rtol=1e-5, atol=1e-5)
    if test_prior is None:
        expected = head.bias.detach().double() - 0.8 * (torch.tensor([300.0, 60.0, 6.0]).double() / 366).log()
        torch.testing.assert_close(fitted.bias.double(), expected, rtol=1e-5, atol=1e-5)


def test_its_strength_is_one_or_chosen(features, head):
    assert LogitAdjustment().tau == 1.0 and LogitAdjustment().tuned(features, head).tau == 1.0
    chosen = LogitAdjustment(None).tuned(features, head).tau
    z, y = head(features.held.features).detach().double().numpy(), features.held.targets.numpy()
    log_prior = np.log(np.array([300, 60, 6]) / 366)
    accuracies = [_balanced_accuracy(z - step / 10 * log_prior, y) for step in range(21)]
    assert chosen > 0
    assert accuracies[round(10 * chosen)] == pytest.approx(max(accuracies), abs=0.004)


def test_a_head_without_a_bias_cannot_be_adjusted(features):
    with pytest.raises(ModelError, match=r"no bias .* tau-norm or crt"):
        LogitAdjustment().fit(features, nn.Linear(4, 3, bias=False))


# -- temperature -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_a_known_temperature_is_recovered(true):
    draw = torch.Generator().manual_seed(0)
    calibrated = 1.5 * torch.randn(40000, 5, generator=draw)
    targets = torch.multinomial(calibrated.softmax(1), 1, generator=draw).squeeze(1)
    assert best_temperature(true * calibrated, targets) == pytest.approx(true, rel=0.03)


def test_it_is_the_minimum_with_all_classes_counting_alike():
    draw = torch.Generator().manual_seed(1)
    targets = torch.cat([torch.zeros(900, dtype=torch.long), torch.ones(30, dtype=torch.long)])
    logits = 2 * torch.randn(930, 2, generator=draw) + torch.tensor([[4.0, 0.0]])  # sure of class 0, wrong on class 1
    found = best_temperature(logits, targets)
    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 801))
    balanced = grid[np.argmin([_balanced_nll(logits.numpy() / t, targets.numpy()) for t in grid])]
    plain = grid[np.argmin([nn.functional.cross_entropy(logits.double() / t, targets).item() for t in grid])]
    assert abs(np.log(plain / balanced)) > 0.3
    assert found == pytest.approx(balanced, rel=1e-2)


def test_a_temperature_changes_confidence_and_no_decision(features, head):
    fitted = Temperature(2.5).fit(features, head)
    x = features.reported["test"].features
    assert fitted(x).softmax(1).amax(1).mean() < head(x).softmax(1).amax(1).mean() - 0.02
    torch.testing.assert_close(fitted(x), head(x) / 2.5, rtol=1e-5, atol=1e-5)
    assert torch.equal(fitted(x).argmax(1), head(x).argmax(1))


def test_the_chosen_temperature_undoes_a_scaled_head(features, head):
    hot = nn.Linear(4, 3)
    hot.load_state_dict({name: 4 * tensor for name, tensor in head.state_dict().items()})
    base, scaled = (Temperature().tuned(features, layer).value for layer in (head, hot))
    assert scaled == pytest.approx(4 * base, rel=1e-4)
    torch.testing.assert_close(
        Temperature().fit(features, hot).weight, Temperature().fit(features, head).weight, rtol=1e-4, atol=1e-4
    )


def test_perfect_logits_end_at_the_bound():
    assert best_temperature(torch.eye(3) * 5, torch.arange(3)) == pytest.approx(0.05, rel=1e-6)
    assert best_temperature(torch.eye(3) * -5, torch.arange(3)) == pytest.approx(20.0, rel=1e-6)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        (TauNorm, -0.1),
        (TauNorm, float("nan")),
        (LogitAdjustment, float("inf")),
        (Temperature, 0.0),
        (Temperature, -1.0),
    ],
)
def test_impossible_settings_are_refused(tool, value):
    with pytest.raises(ConfigError, match="must be a"):
        tool(value)


def test_without_anything_to_hold_out_the_cure_is_named(head):
    single = FeatureSet(torch.randn(3, 4), torch.arange(3))
    data = CachedFeatures.from_splits({"train": single, "test": single})
    assert len(data.held) == 0
    for tool in (TauNorm(), Temperature(), LogitAdjustment(None)):
        with pytest.raises(DataError, match="give the setting yourself"):
            tool.fit(data, head)
    assert TauNorm(1.0).fit(data, head).weight.shape == (3, 4)
