"""What sigmoids of raw logits mean: the constant that makes them probabilities at a balanced test."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relatum.config import ObjectiveConfig
from relatum.objectives import BCE, BalancedBCE, build_objective
from relatum.prior import ClassPrior


def likelihood(classes, states=6, seed=0):
    """Draw p(x | k) over a few values of x, (states, classes)."""
    table = np.random.default_rng(seed).dirichlet(np.ones(states), size=classes)
    return table.T


def posterior(likelihoods, prior):
    joint = likelihoods * (np.asarray(prior) / np.sum(prior))
    return joint / joint.sum(axis=1, keepdims=True)


def best_logits(objective, rows):
    """The logits with the smallest expected loss where the targets are `rows` (states, classes): no slope is left."""
    z = torch.logit(torch.from_numpy(rows)) - getattr(objective, "bias", torch.zeros(())).double()
    z.requires_grad_()
    (slope,) = torch.autograd.grad(objective(z, torch.from_numpy(rows)), z)
    assert slope.abs().max() < 1e-7
    (elsewhere,) = torch.autograd.grad(objective(z + 0.1, torch.from_numpy(rows)), z)
    assert elsewhere.abs().max() > 1e-4
    return z.detach().numpy()


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("shift", ["none", "log(C-1)"])
@pytest.mark.parametrize("counts", [[90, 10], [999, 1]])
def test_two_classes_have_the_balanced_posterior_exactly(counts, shift):
    table = likelihood(2)
    objective = BalancedBCE(ClassPrior(counts), shift=shift)
    found = sigmoid(best_logits(objective, posterior(table, counts)) + objective.sigmoid_bias)
    assert found == pytest.approx(posterior(table, [1, 1]), abs=1e-6)
    assert np.abs(found - posterior(table, counts)).max() > 0.1


@pytest.mark.parametrize("shift", ["none", "log(C-1)"])
def test_a_class_against_a_rest_that_stays_as_it_is(shift):
    """Of five classes four look alike, so that the rest of class 0 is the same under every prior."""
    table = likelihood(2)[:, [0, 1, 1, 1, 1]]
    counts = [3, 400, 80, 30, 10]
    objective = BalancedBCE(ClassPrior(counts), shift=shift)
    z = best_logits(objective, posterior(table, counts))[:, 0]
    balanced = posterior(table, np.ones(5))[:, 0]
    assert sigmoid(z + objective.sigmoid_bias) == pytest.approx(balanced, abs=1e-6)
    wrong = objective.sigmoid_bias + (math.log(4) if shift == "none" else -math.log(4))
    assert np.abs(sigmoid(z + wrong) - balanced).max() > 0.1


def test_without_the_shift_the_constant_is_the_log_odds_of_one_among_many():
    for classes in (2, 10, 1000):
        prior = ClassPrior(list(range(1, classes + 1)))
        assert BalancedBCE(prior).sigmoid_bias == pytest.approx(-math.log(classes - 1), abs=1e-12)
        assert BalancedBCE(prior, shift="log(C-1)").sigmoid_bias == 0.0


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.3])
@pytest.mark.parametrize("shift", ["none", "log(C-1)"])
def test_balanced_training_data_have_nothing_to_correct_at_any_strength(tau, shift):
    table = likelihood(4)
    objective = BalancedBCE(ClassPrior([7] * 4), tau, shift)
    found = sigmoid(best_logits(objective, posterior(table, np.ones(4))) + objective.sigmoid_bias)
    assert found == pytest.approx(posterior(table, np.ones(4)), abs=1e-6)


def test_strength_zero_is_plain_binary_cross_entropy():
    table, counts = likelihood(3), [60, 30, 5]
    objective = BalancedBCE(ClassPrior(counts), 0.0)
    assert objective.sigmoid_bias == BCE().sigmoid_bias == 0.0
    assert sigmoid(best_logits(objective, posterior(table, counts))) == pytest.approx(
        posterior(table, counts), abs=1e-6
    )


def test_another_test_prior_is_in_the_logits_already():
    table, counts = likelihood(2), [90, 10]
    objective = BalancedBCE(ClassPrior(counts, test_prior=[0.3, 0.7]))
    found = sigmoid(best_logits(objective, posterior(table, counts)) + objective.sigmoid_bias)
    assert found == pytest.approx(posterior(table, [0.3, 0.7]), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "bias"),
    [
        ({"name": "cross-entropy"}, None),
        ({"name": "balanced-softmax"}, None),
        ({"name": "vector-scaling"}, None),
        ({"name": "ldam"}, None),
        ({"name": "lade"}, None),
        ({"name": "influence-balanced"}, None),
        ({"name": "focal"}, None),
        ({"name": "focal", "activation": "sigmoid"}, 0.0),
        ({"name": "class-balanced"}, None),
        ({"name": "class-balanced", "base": "focal"}, None),
        ({"name": "class-balanced", "base": "sigmoid"}, 0.0),
        ({"name": "class-balanced", "base": "sigmoid-focal"}, 0.0),
        ({"name": "bce"}, 0.0),
        ({"name": "balanced-bce"}, -math.log(3)),
        ({"name": "balanced-bce", "shift": "log(C-1)"}, 0.0),
        ({"name": "balanced-bce", "label_smoothing": 0.1}, -math.log(3)),
    ],
)
def test_every_objective_says_what_its_sigmoids_mean(settings, bias):
    found = build_objective(ObjectiveConfig(**settings), ClassPrior([500, 60, 7, 1])).sigmoid_bias
    assert found is None if bias is None else found == pytest.approx(bias)
