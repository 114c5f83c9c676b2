"""LADE and the influence-balanced loss against their definitions, written here sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relatum.errors import DataError, ModelError
from relatum.objectives import (
    LADE,
    BalancedSoftmax,
    CrossEntropy,
    InfluenceBalanced,
    influence_size,
    inverse_frequency_weights,
    lade_regulariser,
)
from relatum.prior import ClassPrior

COUNTS = [500, 60, 7, 1, 0]
SAFE = [500, 60, 7, 1, 1]
PRIOR = ClassPrior(COUNTS)
K = len(COUNTS)


def batch(rows=9, seed=0, absent=4):
    """Logits (N, K) and features (N, 3) float64, labels (N,) without the class `absent`."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([k for k in range(K) if k != absent], rows)
    return (torch.from_numpy(values) for values in (rng.normal(0, 2, (rows, K)), labels, rng.normal(0, 3, (rows, 3))))


def regulariser(z, labels, penalty, importance):
    pi = [n / sum(SAFE) for n in SAFE]
    total = 0.0
    for c in range(K):
        own = [row[c] for row, y in zip(z, labels, strict=True) if y == c]
        weights = [1 / (K * pi[c if importance == "released" else y]) for y in labels]
        s = math.log(sum(w * math.exp(row[c]) for w, row in zip(weights, z, strict=True)) / len(z))
        total += pi[c] * (s + penalty * s**2 - (sum(own) / len(own) if own else 0.0))
    return total


@pytest.mark.parametrize("importance", ["sample", "released"])
@pytest.mark.parametrize("penalty", [0.0, 0.01, 0.5])
def test_lade_is_balanced_softmax_and_the_regulariser(importance, penalty):
    logits, labels, _ = batch()
    expected = regulariser(logits.tolist(), labels.tolist(), penalty, importance)
    log_prior = torch.tensor([math.log(n / sum(SAFE)) for n in SAFE], dtype=torch.float64)
    found = lade_regulariser(logits, labels, log_prior, penalty, importance)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    objective = LADE(PRIOR, 0.3, penalty, importance)
    cross_entropy = BalancedSoftmax(PRIOR)(logits, labels).item()
    assert objective(logits, labels).item() == pytest.approx(cross_entropy + 0.3 * expected, rel=1e-6)
    single = objective(logits.float(), labels)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(cross_entropy + 0.3 * expected, rel=1e-5)


def test_kinds_of_importance_agree_where_all_classes_are_alike():
    logits, labels, _ = batch()
    skewed = [LADE(PRIOR, 1.0, importance=kind)(logits, labels) for kind in ("sample", "released")]
    assert not torch.isclose(*skewed, rtol=1e-2)
    even = [LADE(ClassPrior([3] * K), 1.0, importance=kind)(logits, labels) for kind in ("sample", "released")]
    torch.testing.assert_close(*even)


def test_the_regulariser_is_smallest_at_the_log_density_ratio():
    """Two classes, an image of two values with known frequencies, and a batch that has exactly those frequencies."""
    likelihood = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)  # p(x | class)
    rows = [(x, y) for y, n in ((0, 12), (1, 4)) for x in range(2) for _ in range(int(n * likelihood[y, x]))]
    images, labels = torch.tensor(rows).T
    log_prior = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    ratio = (likelihood / likelihood.mean(0)).log().T  # log p(x | c) / p(x) in a world with equal classes, (x, c)

    def gradient(table, importance):
        table = table.clone().requires_grad_()
        return torch.autograd.grad(lade_regulariser(table[images], labels, log_prior, 0.5, importance), table)[0]

    assert gradient(torch.zeros(2, 2, dtype=torch.float64), "sample").abs().max() > 0.1
    assert gradient(ratio, "sample").abs().max() < 1e-12
    assert gradient(ratio, "released").abs().max() > 0.01


def test_lade_smoothing_and_class_weights_act_on_the_cross_entropy():
    logits, labels, _ = batch()
    extra = LADE(PRIOR)(logits, labels) - BalancedSoftmax(PRIOR)(logits, labels)
    lade, balanced = LADE(PRIOR, label_smoothing=0.1), BalancedSoftmax(PRIOR, label_smoothing=0.1)
    weights = torch.arange(1.0, K + 1)
    for objective in (lade, balanced):
        before = objective(logits, labels)
        objective.set_class_weights(weights)
        assert not torch.isclose(objective(logits, labels), before, rtol=1e-3)
    torch.testing.assert_close(lade(logits, labels) - balanced(logits, labels), extra)


def test_lade_refuses_soft_targets_and_says_why():
    logits, labels, _ = batch()
    assert not LADE(PRIOR).accepts_soft_targets and BalancedSoftmax(PRIOR).accepts_soft_targets
    with pytest.raises(DataError, match=r"lade needs one label per image.*a mix is of none.*data\.mixup=0"):
        LADE(PRIOR)(logits, torch.nn.functional.one_hot(labels, K).double())


@pytest.mark.parametrize("importance", ["sample", "released"])
def test_lade_gradients(importance):
    logits, labels, _ = batch(rows=6)
    objective = LADE(PRIOR, 0.5, 0.2, importance, label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda z: objective(z, labels), (logits.requires_grad_(),))


def test_lade_stays_finite_and_takes_bfloat16():
    labels = torch.arange(K)
    logits = (300 * (2 * torch.eye(K) - 1)).requires_grad_()
    value = LADE(PRIOR)(logits, labels.roll(1))
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.isfinite(value) and torch.isfinite(gradient).all()
    rounded, targets, _ = batch(rows=64)
    rounded = rounded.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = LADE(PRIOR)(rounded, targets)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), LADE(PRIOR)(rounded.double(), targets), rtol=1e-5, atol=1e-6)


def influence_loss(z, y, h, alpha, smoothing=0.0):
    """The loss of one sample with the target row y, its weight from the unsmoothed row."""
    inverse = [1 / n for n in SAFE]
    weights = [K * w / sum(inverse) for w in inverse]
    smooth = [(1 - smoothing) * v + smoothing / K for v in y]
    norm = sum(math.exp(v) for v in z)
    p = [math.exp(v) / norm for v in z]
    cross_entropy = -sum(a * math.log(b) for a, b in zip(smooth, p, strict=True))
    size = sum(abs(a - b) for a, b in zip(p, smooth, strict=True)) * sum(abs(v) for v in h)
    weight = sum(a * w for a, w in zip(y, weights, strict=True))
    return cross_entropy * alpha * weight / (size + 1e-3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_influence_balanced_is_its_definition(soft, smoothing):
    logits, labels, features = batch()
    rows = torch.nn.functional.one_hot(labels, K).double()
    rows = 0.6 * rows + 0.4 * rows.roll(1, 0) if soft else rows
    triples = zip(logits.tolist(), rows.tolist(), features.tolist(), strict=True)
    expected = [influence_loss(z, y, h, 50.0, smoothing) for z, y, h in triples]
    objective = InfluenceBalanced(PRIOR, 50.0, start=0.0, label_smoothing=smoothing, reduction="none")
    found = objective(logits, rows if soft else labels, features)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    mean = InfluenceBalanced(PRIOR, 50.0, start=0.0, label_smoothing=smoothing)
    assert mean(logits, rows if soft else labels, features).item() == pytest.approx(np.mean(expected), rel=1e-6)


def test_influence_is_the_gradient_of_the_last_layer():
    _, labels, features = batch()
    weight = torch.randn(K, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    sizes = influence_size(features @ weight.T, labels, features)
    for i in range(len(labels)):
        loss = torch.nn.functional.cross_entropy(features[i : i + 1] @ weight.T, labels[i : i + 1])
        (gradient,) = torch.autograd.grad(loss, weight)
        torch.testing.assert_close(sizes[i], gradient.abs().sum())


def test_one_hot_rows_are_labels_to_the_bit():
    logits, labels, features = batch()
    rows = torch.nn.functional.one_hot(labels, K)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        objective = InfluenceBalanced(PRIOR, start=0.0, label_smoothing=0.1)
        values = [objective(logits.to(dtype), y, features.to(dtype)) for y in (labels, rows.to(dtype))]
        assert torch.equal(*values)
        assert values[0].dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        assert not torch.equal(objective(logits.to(dtype), rows.roll(1, 0).to(dtype), features.to(dtype)), values[0])


def test_influence_is_a_number_unless_asked():
    logits, labels, features = batch()
    logits, features = logits.requires_grad_(), features.requires_grad_()
    constant = InfluenceBalanced(PRIOR, start=0.0, reduction="sum")
    gradients = torch.autograd.grad(constant(logits, labels, features), (logits, features), allow_unused=True)
    assert gradients[1] is None
    factor = 1000 * torch.from_numpy(inverse_frequency_weights(PRIOR))[labels]
    factor = factor / (influence_size(logits, labels, features).detach() + 1e-3)
    (plain,) = torch.autograd.grad(CrossEntropy(reduction="sum")(logits, labels), logits)
    torch.testing.assert_close(gradients[0], factor.unsqueeze(1) * plain, rtol=1e-6, atol=1e-9)
    released = InfluenceBalanced(PRIOR, start=0.0, gradient="released", reduction="sum")
    torch.testing.assert_close(released(logits, labels, features), constant(logits, labels, features))
    assert torch.autograd.gradcheck(lambda z, h: released(z, labels, h), (logits, features))
    (other,) = torch.autograd.grad(released(logits, labels, features), logits)
    assert not torch.allclose(other, gradients[0], rtol=1e-2)


def test_starts_as_cross_entropy_and_switches():
    logits, labels, features = batch()
    plain = CrossEntropy()(logits, labels)
    balanced = InfluenceBalanced(PRIOR, start=0.0)(logits, labels, features)
    assert not torch.isclose(plain, balanced, rtol=1e-2)
    objective = InfluenceBalanced(PRIOR)
    for epoch, expected in ((None, plain), (0, plain), (99, plain), (100, balanced), (199, balanced), (50, plain)):
        if epoch is not None:
            objective.set_epoch(epoch, 200)
        torch.testing.assert_close(objective(logits, labels, features), expected)
    never = InfluenceBalanced(PRIOR, start=1.0)
    never.set_epoch(200, 200)
    assert not never.active


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_missing_or_wrong_features_are_refused_from_the_first_epoch_on(start):
    logits, labels, features = batch()
    objective = InfluenceBalanced(PRIOR, start=start)
    assert objective.needs_features and not CrossEntropy().needs_features
    with pytest.raises(ModelError, match=r"needs the features that the classifier saw.*\(N, C\)"):
        objective(logits, labels)
    for wrong in (features[:4], features[:, :, None], features.long()):
        with pytest.raises(ModelError, match=r"shape \(9, C\), the pooled input"):
            objective(logits, labels, wrong)


def test_released_gradient_refuses_soft_targets():
    logits, labels, features = batch()
    objective = InfluenceBalanced(PRIOR, gradient="released")
    assert not objective.accepts_soft_targets and InfluenceBalanced(PRIOR).accepts_soft_targets
    with pytest.raises(DataError, match="vanishes where their loss does not"):
        objective(logits, torch.nn.functional.one_hot(labels, K).double(), features)


def test_perfect_answers_stay_finite():
    logits = (300 * torch.eye(K)).requires_grad_()
    for gradient in ("constant", "released"):
        objective = InfluenceBalanced(PRIOR, start=0.0, gradient=gradient)
        for labels in (torch.arange(K), torch.arange(K).roll(1)):
            value = objective(logits, labels, torch.zeros(K, 2))
            (slope,) = torch.autograd.grad(value, logits)
            assert torch.isfinite(value) and torch.isfinite(slope).all()


def test_settings_are_shown_and_nothing_is_saved():
    for objective, words in (
        (LADE(PRIOR, 0.2, 0.5), "alpha=0.2, penalty=0.5, importance='sample'"),
        (InfluenceBalanced(PRIOR, 10.0, 0.4), "alpha=10.0, start=0.4, gradient='constant'"),
    ):
        assert words in repr(objective)
        assert not objective.state_dict() and objective.corrects_prior
