"""Balanced binary cross-entropy: its three theorems, the worked numbers, smoothing, and where training starts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from relatum.objectives import BCE, BalancedBCE, Focal, balanced_bce_bias
from relatum.objectives.terms import log_odds
from relatum.prior import ClassPrior

COUNTS = [500, 60, 7, 1]
PRIOR = ClassPrior(COUNTS)
CIFAR100_LT = ClassPrior([int(500 * 0.01 ** (k / 99)) for k in range(100)])


def logit(p):
    return math.log(p) - math.log(1 - p)


def batch(classes=4, rows=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=generator)


def test_worked_biases_of_cifar100_lt():
    assert CIFAR100_LT.counts.sum() == 10847
    theorem_2, equation_10 = balanced_bce_bias(CIFAR100_LT), balanced_bce_bias(CIFAR100_LT, shift="log(C-1)")
    worked = {0: (-3.0298, 1.5653), 35: (-4.6976, -0.1025), 70: (-6.3455, -1.7503), 99: (-7.6817, -3.0866)}
    for k, (second, tenth) in worked.items():
        assert theorem_2[k] == pytest.approx(second, abs=5.1e-5)
        assert equation_10[k] == pytest.approx(tenth, abs=5.1e-5)


def test_worked_losses_of_cifar100_lt_at_zero_logits():
    """Averaged over the training labels, from the objectives and once more by hand."""
    labels = torch.from_numpy(np.repeat(np.arange(100), CIFAR100_LT.counts))
    logits = torch.zeros(len(labels), 100)
    found = [
        objective(logits, labels).item()
        for objective in (BCE(), BalancedBCE(CIFAR100_LT), BalancedBCE(CIFAR100_LT, shift="log(C-1)"))
    ]
    assert [round(value, 3) for value in found] == [69.315, 4.995, 55.322]
    for value, offset in zip(found[1:], (0.0, math.log(99)), strict=True):
        by_hand = 0.0
        for pi in CIFAR100_LT.counts / 10847:
            p = 1 / (1 + math.exp(-logit(pi) - offset))
            by_hand -= pi * math.log(p) + (1 - pi) * math.log(1 - p)
        assert value == pytest.approx(by_hand, rel=1e-5)


def test_matching_head_bias_gives_every_variant_the_same_start():
    logits, labels = torch.zeros(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    start = BalancedBCE(PRIOR, 0.8)(logits, labels)
    others = (
        BalancedBCE(PRIOR, 0.8, "log(C-1)"),
        BalancedBCE(ClassPrior(COUNTS, test_prior=[1, 2, 3, 4]), 0.8),
        BalancedBCE(ClassPrior(COUNTS, test_prior=COUNTS), 0.8),
    )
    for objective in others:
        assert not torch.isclose(objective(logits, labels), start, rtol=1e-2)
        bias = objective.matching_head_bias()
        assert bias.dtype == torch.float32
        torch.testing.assert_close(objective(logits + bias, labels), start, rtol=1e-6, atol=1e-6)
    assert torch.equal(BalancedBCE(PRIOR).matching_head_bias(), torch.zeros(4))
    torch.testing.assert_close(others[0].matching_head_bias(), torch.full((4,), -math.log(3)))
    torch.testing.assert_close(
        BalancedBCE(ClassPrior(COUNTS, test_prior=[1, 2, 3, 4])).matching_head_bias(),
        torch.tensor([logit(p / 10) for p in (1, 2, 3, 4)]),
    )
    for objective in (BCE(), Focal(2.0, "sigmoid")):  # sigmoids of 1 / K
        torch.testing.assert_close(torch.sigmoid(objective.matching_head_bias(100)), torch.full((100,), 0.01))
    assert torch.equal(Focal(2.0).matching_head_bias(5), torch.zeros(5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [2, 4, 37])
def test_uniform_prior_needs_no_correction(classes, smoothing):
    uniform = ClassPrior([9] * classes)
    np.testing.assert_allclose(balanced_bce_bias(uniform, 1.0, "log(C-1)", smoothing), 0.0, atol=1e-14)
    np.testing.assert_allclose(balanced_bce_bias(uniform, 0.7), -0.7 * math.log(classes - 1), rtol=1e-14, atol=1e-15)
    logits, labels = batch(classes)
    objective = BalancedBCE(uniform, shift="log(C-1)", label_smoothing=smoothing)
    torch.testing.assert_close(objective(logits, labels), BCE(label_smoothing=smoothing)(logits, labels))


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_test_prior_equal_to_the_training_prior_is_plain(tau, smoothing):
    logits, labels = batch()
    plain = BCE(label_smoothing=smoothing)(logits, labels)
    assert not torch.isclose(BalancedBCE(PRIOR, tau, label_smoothing=smoothing)(logits, labels), plain, rtol=1e-2)
    equal = BalancedBCE(ClassPrior(COUNTS, test_prior=COUNTS), tau, label_smoothing=smoothing)
    torch.testing.assert_close(equal(logits, labels), plain, rtol=1e-12, atol=1e-12)


def test_test_prior_is_theorem_3():
    test = [0.1, 0.2, 0.3, 0.4]
    found = balanced_bce_bias(ClassPrior(COUNTS, test_prior=test), 1.3)
    expected = [1.3 * (logit(n / 568) - logit(p)) for n, p in zip(COUNTS, test, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    # A test prior next to uniform is the equation for balanced tests, which a uniform one has as an option.
    nearly = balanced_bce_bias(ClassPrior(COUNTS, test_prior=[0.25 + 1e-7, 0.25, 0.25, 0.25 - 1e-7]))
    np.testing.assert_allclose(nearly, balanced_bce_bias(PRIOR, shift="log(C-1)"), atol=1e-5)


def test_tau_acts_on_the_prior_and_not_on_the_constant():
    one, two = balanced_bce_bias(PRIOR, 1.0), balanced_bce_bias(PRIOR, 2.0)
    np.testing.assert_allclose(two, 2 * one)
    np.testing.assert_allclose(balanced_bce_bias(PRIOR, 2.0, "log(C-1)") - two, math.log(3))
    logits, labels = batch()
    torch.testing.assert_close(BalancedBCE(PRIOR, 0.0)(logits, labels), BCE()(logits, labels))


def test_the_constant_is_absorbed_by_the_classifier():
    """Its minimum is the same up to log(K - 1) in every logit, so order and softmax are the same too."""
    none, shifted = (torch.from_numpy(balanced_bce_bias(PRIOR, shift=s)) for s in ("none", "log(C-1)"))
    best = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).logit()
    z_none, z_shifted = best - none, best - shifted  # where the sigmoids are the targets
    torch.testing.assert_close(z_none - z_shifted, torch.full((1, 4), math.log(3), dtype=torch.float64))
    torch.testing.assert_close(z_none.softmax(1), z_shifted.softmax(1))
    assert torch.equal(z_none.argsort(1), z_shifted.argsort(1))


def test_the_shift_makes_the_sigmoid_a_probability_at_test():
    """One feature with two values, known joint frequencies: Bayes' rule for a uniform test against the minimiser."""
    likelihood = np.array([[0.9, 0.1], [0.4, 0.6]])  # p(x | class)
    pi = np.array([0.95, 0.05])
    at_train = likelihood * pi[:, None] / (likelihood * pi[:, None]).sum(0)
    at_test = likelihood / likelihood.sum(0)
    bias = balanced_bce_bias(ClassPrior([95, 5]), shift="log(C-1)")
    z = np.log(at_train / (1 - at_train)) - bias[:, None]
    np.testing.assert_allclose(1 / (1 + np.exp(-z)), at_test, rtol=1e-12)


def test_smoothing_uses_the_prior_of_smoothed_targets():
    eps, n = 0.2, sum(COUNTS)
    implied = [logit((1 - eps) * c / n + eps / 4) for c in COUNTS]
    np.testing.assert_allclose(balanced_bce_bias(PRIOR, label_smoothing=eps), implied, rtol=1e-13)
    smoothed = BalancedBCE(PRIOR, label_smoothing=eps)
    torch.testing.assert_close(smoothed.bias, torch.tensor(implied))
    counted = BalancedBCE(PRIOR, bias_prior="counts", label_smoothing=eps)
    torch.testing.assert_close(counted.bias, torch.tensor([logit(c / n) for c in COUNTS]))
    # With the implied prior, zero logits are a stationary point in the mean over the data: nothing is left to correct.
    labels = torch.from_numpy(np.repeat(np.arange(4), COUNTS))
    for objective, at_rest in ((smoothed, True), (counted, False)):
        logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(objective(logits.expand(len(labels), 4), labels), logits)
        assert bool((gradient.abs() < 1e-7).all()) is at_rest


@pytest.mark.parametrize(
    "frequencies",
    [[10**15, 1], [1, 10**15, 1], [3, 5, 7, 11], [1.0, 1e-17, 1e-17], [1e-300, 1.0], [2**40] + [1] * 50],
)
def test_log_odds_are_exact_for_priors_next_to_zero_and_one(frequencies):
    exact = [Fraction(f) for f in frequencies]
    total = sum(exact)
    expected = [math.log(f) - math.log(float(total - f)) for f in exact]
    np.testing.assert_allclose(log_odds(np.array(frequencies)), expected, rtol=1e-13)
    extreme = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    value = BalancedBCE(ClassPrior([10**15, 1]))(extreme, torch.tensor([1, 0]))
    (gradient,) = torch.autograd.grad(value, extreme)
    assert torch.isfinite(value) and torch.isfinite(gradient).all()


def test_classes_without_samples_count_as_one_and_are_named():
    with pytest.warns(UserWarning, match=r"2 of 4 classes have no training sample \('ant', 'bee'\).*drop the class"):
        objective = BalancedBCE(ClassPrior({"cat": 9, "ant": 0, "dog": 1, "bee": 0}))
    torch.testing.assert_close(objective.bias, BalancedBCE(ClassPrior([9, 1, 1, 1])).bias)
    logits, labels = batch()
    assert torch.isfinite(objective(logits, labels))


def test_prior_sets_the_number_of_classes():
    with pytest.raises(Exception, match=r"gives 5 logits, but the class prior has 4 classes.*num_classes=4"):
        BalancedBCE(PRIOR)(torch.zeros(2, 5), torch.tensor([0, 1]))


def test_nothing_is_saved_and_everything_is_shown():
    objective = BalancedBCE(PRIOR, 1.5, "log(C-1)", label_smoothing=0.1)
    assert not objective.state_dict() and not list(objective.parameters())
    assert all(buffer.dtype == torch.float32 for buffer in objective.buffers())
    assert "tau=1.5, shift='log(C-1)', bias_prior='implied', label_smoothing=0.1" in repr(objective)
    assert objective.corrects_prior and not BCE().corrects_prior and not BalancedBCE(PRIOR, 0.0).corrects_prior
    assert "sigmoid" in repr(Focal(activation="sigmoid")) and "softmax" not in repr(Focal())


def test_sum_over_classes_and_mean_over_samples():
    logits, labels = torch.zeros(3, 7), torch.tensor([0, 1, 6])
    assert BCE()(logits, labels).item() == pytest.approx(7 * math.log(2))
    assert BCE(reduction="sum")(logits, labels).item() == pytest.approx(21 * math.log(2))


def test_compiled_as_one_graph():
    logits, labels = batch()
    rows = torch.nn.functional.one_hot(labels, 4).double()
    objective = BalancedBCE(PRIOR)
    compiled = torch.compile(objective, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, rows), objective(logits, rows))
