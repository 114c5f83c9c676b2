"""Relations between the objectives, published numbers, and what may not depend on the order of classes or samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.objectives import (
    BCE,
    LADE,
    LDAM,
    BalancedBCE,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    DeferredReweighting,
    Focal,
    InfluenceBalanced,
    LogitAdjusted,
    VectorScaling,
    effective_number_weights,
    ldam_margins,
    soft_targets,
    vector_scaling_divisors,
)
from relatum.prior import ClassPrior

CIFAR100_LT = ClassPrior([int(500 * 0.01 ** (k / 99)) for k in range(100)])
SKEWED = ClassPrior([90, 9, 3, 0])


def batch(classes=4, rows=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=generator)


def test_worked_numbers_of_cifar100_lt():
    assert CIFAR100_LT.counts.sum() == 10847
    weights = effective_number_weights(CIFAR100_LT, 0.9999)
    assert weights[0] == pytest.approx(0.0449, abs=5e-5)
    assert weights[99] == pytest.approx(4.378, abs=5e-4)
    assert weights.sum() == pytest.approx(100)
    margins = ldam_margins(CIFAR100_LT, 0.5)
    assert margins[0] == pytest.approx(0.158, abs=5e-4)
    assert margins[99] == pytest.approx(0.5)
    divisors = vector_scaling_divisors(CIFAR100_LT, 0.3)
    assert divisors[0] == 1.0
    assert divisors[99] == pytest.approx(3.98, abs=5e-3)
    log_prior = BalancedSoftmax(CIFAR100_LT).log_prior
    assert [round(log_prior[k].item(), 4) for k in (0, 35, 70, 99)] == [-3.0770, -4.7067, -6.3472, -7.6822]


@pytest.mark.parametrize(
    ("special", "general"),
    [
        (CrossEntropy(), BalancedSoftmax(ClassPrior([7, 7, 7, 7]))),
        (CrossEntropy(), LogitAdjusted(SKEWED, tau=0.0)),
        (CrossEntropy(), VectorScaling(SKEWED, gamma=0.0, tau=0.0)),
        (CrossEntropy(), Focal(gamma=0.0)),
        (CrossEntropy(), ClassBalanced(SKEWED, beta=0.0)),
        (Focal(gamma=2.0), ClassBalanced(SKEWED, beta=0.0, base="focal", gamma=2.0)),
        (BCE(), Focal(gamma=0.0, activation="sigmoid")),
        (BCE(), ClassBalanced(SKEWED, beta=0.0, base="sigmoid")),
        (Focal(2.0, "sigmoid"), ClassBalanced(SKEWED, beta=0.0, base="sigmoid-focal", gamma=2.0)),
        (BalancedSoftmax(SKEWED), LADE(SKEWED, alpha=0.0)),
        (CrossEntropy(), InfluenceBalanced(SKEWED, start=1.0)),
        (BalancedSoftmax(SKEWED), LogitAdjusted(SKEWED, tau=1.0)),
        (LogitAdjusted(SKEWED, tau=1.5), VectorScaling(SKEWED, gamma=0.0, tau=1.5)),
    ],
)
def test_special_cases(special, general):
    logits, labels = batch()
    features = torch.ones(len(labels), 2)  # most do not look at them
    torch.testing.assert_close(
        general(logits, labels, features), special(logits, labels, features), rtol=1e-12, atol=1e-12
    )


def test_settings_matter_otherwise():
    logits, labels = batch()
    plain = CrossEntropy()(logits, labels)
    others = (
        BalancedSoftmax(SKEWED),
        LogitAdjusted(SKEWED, tau=0.1),
        VectorScaling(SKEWED, gamma=0.1, tau=0.0),
        Focal(gamma=0.1),
        ClassBalanced(SKEWED, beta=0.5),
    )
    for objective in others:
        assert not torch.isclose(objective(logits, labels), plain, rtol=1e-3), objective


def test_ldam_without_margin_is_scaled_cross_entropy():
    cosines, labels = batch()
    cosines = cosines.tanh()
    objective = LDAM(SKEWED, margin=0.0, scale=30.0)
    torch.testing.assert_close(objective(30 * cosines, labels), CrossEntropy()(30 * cosines, labels))
    assert LDAM(SKEWED, margin=0.5)(30 * cosines, labels) > objective(30 * cosines, labels)


@pytest.mark.parametrize("objective", [Focal(2.0), BalancedSoftmax(SKEWED), LDAM(SKEWED)])
def test_smoothing_is_smoothing_of_the_targets(objective):
    logits, labels = batch()
    logits = logits.tanh()
    plain = objective(logits, labels)
    objective.label_smoothing = 0.2
    assert not torch.isclose(objective(logits, labels), plain, rtol=1e-3)
    smoothed = soft_targets(labels, 4, 0.2)
    torch.testing.assert_close(smoothed.sum(1), torch.ones(16))
    value = objective(logits, labels)
    objective.label_smoothing = 0.0
    torch.testing.assert_close(objective(logits, smoothed), value, rtol=1e-6, atol=1e-7)


def test_soft_targets_mix_losses():
    logits, labels = batch()
    logits = logits.tanh()
    other = labels.roll(1)
    mixed = 0.3 * soft_targets(labels, 4) + 0.7 * soft_targets(other, 4)
    for objective in (Focal(2.0), LDAM(SKEWED), VectorScaling(SKEWED)):
        value = 0.3 * objective(logits, labels) + 0.7 * objective(logits, other)
        torch.testing.assert_close(objective(logits, mixed), value, rtol=1e-6, atol=1e-7)


def make(kind, prior):
    return {
        "balanced-softmax": lambda: BalancedSoftmax(prior),
        "vector-scaling": lambda: VectorScaling(prior),
        "focal": lambda: Focal(0.7, prior=prior),
        "class-balanced": lambda: ClassBalanced(prior),
        "ldam": lambda: LDAM(prior),
        "balanced-bce": lambda: BalancedBCE(prior, 0.9),
        "sigmoid-focal": lambda: ClassBalanced(prior, 0.99, "sigmoid-focal"),
    }[kind]()


@pytest.mark.filterwarnings("ignore:balanced-bce")
@settings(max_examples=35, deadline=None)
@given(
    kind=st.sampled_from(
        ["balanced-softmax", "vector-scaling", "focal", "class-balanced", "ldam", "balanced-bce", "sigmoid-focal"]
    ),
    counts=st.lists(st.integers(0, 5000), min_size=2, max_size=9).filter(any),
    seed=st.integers(0, 2**16),
    soft=st.booleans(),
)
def test_order_of_classes_and_samples_does_not_matter(kind, counts, seed, soft):
    logits, labels = batch(len(counts), rows=7, seed=seed)
    logits = logits.tanh()
    targets = torch.softmax(logits.flip(0), 1) if soft else labels
    value = make(kind, ClassPrior(counts))(logits, targets)
    assert torch.isfinite(value)
    rng = np.random.default_rng(seed)
    classes, rows = torch.from_numpy(rng.permutation(len(counts))), torch.from_numpy(rng.permutation(7))
    moved = targets[rows][:, classes] if soft else classes.argsort()[targets[rows]]
    renamed = make(kind, ClassPrior(np.asarray(counts)[classes.numpy()]))
    torch.testing.assert_close(renamed(logits[rows][:, classes], moved), value, rtol=1e-6, atol=1e-7)


def test_zero_and_one_counts_give_finite_terms():
    prior = ClassPrior([5000, 1, 0])
    for beta in (0.0, 0.5, 0.9999, 0.9999999):
        weights = effective_number_weights(prior, beta)
        assert np.isfinite(weights).all() and weights.sum() == pytest.approx(3)
        assert weights[1] == weights[2] >= weights[0]
    for terms in (ldam_margins(prior), vector_scaling_divisors(prior)):
        assert np.isfinite(terms).all() and terms[1] == terms[2] > terms[0]


def test_nothing_enters_the_state_dict_and_buffers_are_float32():
    objectives = [make(kind, SKEWED) for kind in ("balanced-softmax", "vector-scaling", "class-balanced", "ldam")]
    weighted = CrossEntropy()
    weighted.set_class_weights([1.0, 2.0, 3.0, 4.0])
    for objective in [*objectives, weighted, DeferredReweighting(CrossEntropy(), SKEWED)]:
        buffers = list(objective.buffers())
        assert buffers and all(b.dtype == torch.float32 for b in buffers)
        assert not list(objective.parameters()) and not objective.state_dict()


def test_which_objectives_correct_the_prior():
    assert not any(o.corrects_prior for o in (CrossEntropy(), Focal(), LDAM(SKEWED)))
    assert all(make(kind, SKEWED).corrects_prior for kind in ("balanced-softmax", "vector-scaling", "class-balanced"))
    assert LogitAdjusted(SKEWED).corrects_prior and not LogitAdjusted(SKEWED, tau=0).corrects_prior
    assert VectorScaling(SKEWED, gamma=0.1, tau=0).corrects_prior
    assert not VectorScaling(SKEWED, gamma=0, tau=0).corrects_prior
