"""Every objective against its definition, written here in plain Python floats, class by class and sample by sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchvision.ops import sigmoid_focal_loss

from relatum.objectives import (
    BCE,
    LDAM,
    BalancedBCE,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LogitAdjusted,
    VectorScaling,
    functional,
)
from relatum.prior import ClassPrior

COUNTS = [500, 60, 7, 1, 0]  # with a class of one sample and a class of none
WEIGHTS = [0.2, 0.7, 1.1, 1.0, 2.0]
PRIOR = ClassPrior(COUNTS)
pytestmark = pytest.mark.filterwarnings("ignore:balanced-bce. 1 of 5 classes have no training sample")

OBJECTIVES = {
    "cross-entropy": lambda **o: CrossEntropy(**o),
    "balanced-softmax": lambda **o: BalancedSoftmax(PRIOR, **o),
    "logit-adjusted": lambda **o: LogitAdjusted(PRIOR, 1.7, **o),
    "vector-scaling": lambda **o: VectorScaling(PRIOR, 0.2, 1.2, **o),
    "focal": lambda **o: Focal(0.5, **o),
    "class-balanced": lambda **o: ClassBalanced(PRIOR, 0.99, **o),
    "class-balanced-focal": lambda **o: ClassBalanced(PRIOR, 0.99, "focal", 2.0, **o),
    "ldam": lambda **o: LDAM(PRIOR, 0.4, 10.0, **o),
    "bce": lambda **o: BCE(**o),
    "balanced-bce": lambda **o: BalancedBCE(PRIOR, 1.3, "log(C-1)", "counts", **o),
    "sigmoid-focal": lambda **o: Focal(0.5, "sigmoid", **o),
    "class-balanced-sigmoid": lambda **o: ClassBalanced(PRIOR, 0.99, "sigmoid", **o),
    "class-balanced-sigmoid-focal": lambda **o: ClassBalanced(PRIOR, 0.99, "sigmoid-focal", 2.0, **o),
}
NAMES = list(OBJECTIVES)


def negative_log_softmax(z, k):
    top = max(z)
    return top + math.log(math.fsum(math.exp(v - top) for v in z)) - z[k]


def negative_log_sigmoid(x):
    return max(-x, 0.0) + math.log1p(math.exp(-abs(x)))


def yes_and_no(z, k, gamma=0.0):
    """Sum over the classes: -(1 - p)^gamma log p for class k, -p^gamma log(1 - p) for the others."""
    total = 0.0
    for j, x in enumerate(z):
        signed = x if j == k else -x
        wrong = 1 / (1 + math.exp(signed)) if signed < 500 else 0.0
        total += wrong**gamma * negative_log_sigmoid(signed)
    return total


def loss_of_class(name, z, k):
    """The loss of one sample with logits z if its class is k."""
    n = [max(c, 1) for c in COUNTS]
    log_pi = [math.log(c / sum(n)) for c in n]
    if name in ("cross-entropy", "class-balanced"):
        return negative_log_softmax(z, k)
    if name == "balanced-softmax":
        return negative_log_softmax([a + b for a, b in zip(z, log_pi, strict=True)], k)
    if name == "logit-adjusted":
        return negative_log_softmax([a + 1.7 * b for a, b in zip(z, log_pi, strict=True)], k)
    if name == "vector-scaling":
        scaled = [a / (max(n) / c) ** 0.2 + 1.2 * b for a, b, c in zip(z, log_pi, n, strict=True)]
        return negative_log_softmax(scaled, k)
    if name in ("focal", "class-balanced-focal"):
        ce = negative_log_softmax(z, k)
        return (1 - math.exp(-ce)) ** (0.5 if name == "focal" else 2.0) * ce
    if name in ("bce", "class-balanced-sigmoid"):
        return yes_and_no(z, k)
    if name == "balanced-bce":
        bias = [1.3 * math.log(c / (sum(n) - c)) + math.log(len(n) - 1) for c in n]
        return yes_and_no([a + b for a, b in zip(z, bias, strict=True)], k)
    if name in ("sigmoid-focal", "class-balanced-sigmoid-focal"):
        return yes_and_no(z, k, 0.5 if name == "sigmoid-focal" else 2.0)
    margins = [0.4 * (c / min(n)) ** -0.25 for c in n]
    return negative_log_softmax([a - 10.0 * margins[k] * (j == k) for j, a in enumerate(z)], k)


def weights_of(name, weights):
    if not name.startswith("class-balanced"):
        return weights
    raw = [(1 - 0.99) / (1 - 0.99 ** max(c, 1)) for c in COUNTS]
    return [len(COUNTS) * r / sum(raw) for r in raw]


def reference(name, logits, targets, smoothing=0.0, weights=None, reduction="mean"):
    k_all = len(COUNTS)
    weights = weights_of(name, weights) or [1.0] * k_all
    losses, sample_weights = [], []
    for z, target in zip(logits.tolist(), targets.tolist(), strict=True):
        row = target if isinstance(target, list) else [float(k == target) for k in range(k_all)]
        smoothed = [(1 - smoothing) * y + smoothing / k_all for y in row]
        losses.append(math.fsum(y * loss_of_class(name, z, k) for k, y in enumerate(smoothed)))
        sample_weights.append(math.fsum(y * w for y, w in zip(row, weights, strict=True)))
    weighted = [a * b for a, b in zip(losses, sample_weights, strict=True)]
    if reduction == "none":
        return torch.tensor(weighted, dtype=torch.float64)
    total = math.fsum(weighted)
    return torch.tensor(total if reduction == "sum" else total / math.fsum(sample_weights), dtype=torch.float64)


def batch(name, soft, rows=6, seed=0):
    """Logits (N, K) float64, ten times a cosine for ldam, and targets."""
    rng = np.random.default_rng(seed)
    logits = 10 * rng.uniform(-1, 1, (rows, len(COUNTS))) if name == "ldam" else rng.normal(0, 3, (rows, len(COUNTS)))
    labels = rng.integers(0, len(COUNTS), rows)
    mixed = rng.dirichlet(np.ones(len(COUNTS)), rows)
    return torch.from_numpy(logits), torch.from_numpy(mixed if soft else labels)


def options():
    for soft in (False, True):
        for smoothing in (0.0, 0.1):
            for reduction in ("mean", "sum", "none"):
                for weights in (None, WEIGHTS):
                    yield pytest.param(soft, smoothing, reduction, weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("soft", "smoothing", "reduction", "weights"), list(options()))
def test_value_is_the_definition(name, soft, smoothing, reduction, weights):
    logits, targets = batch(name, soft)
    objective = OBJECTIVES[name](label_smoothing=smoothing, reduction=reduction)
    if weights is not None and not objective.own_weights:
        objective.set_class_weights(weights)
    expected = reference(name, logits, targets, smoothing, weights, reduction)
    torch.testing.assert_close(objective(logits, targets), expected, rtol=2e-6, atol=1e-7)  # buffers are float32
    single = objective(logits.float(), targets)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_pure_functions_are_exact_in_float64(soft, smoothing):
    n = np.maximum(COUNTS, 1)
    log_prior = torch.from_numpy(np.log(n / n.sum()))
    divisors = torch.from_numpy((n.max() / n) ** 0.2)
    margins = torch.from_numpy(0.4 * n**-0.25)
    bias = torch.from_numpy(1.3 * np.log(n / (n.sum() - n)) + np.log(len(n) - 1))
    calls = {
        "cross-entropy": lambda z, y, **o: functional.cross_entropy(z, y, **o),
        "balanced-softmax": lambda z, y, **o: functional.balanced_softmax(z, y, log_prior, **o),
        "logit-adjusted": lambda z, y, **o: functional.logit_adjusted(z, y, log_prior, 1.7, **o),
        "vector-scaling": lambda z, y, **o: functional.vector_scaling(z, y, divisors, log_prior, 1.2, **o),
        "focal": lambda z, y, **o: functional.focal(z, y, 0.5, **o),
        "ldam": lambda z, y, **o: functional.ldam(z, y, margins, 10.0, **o),
        "bce": lambda z, y, **o: functional.binary_cross_entropy(z, y, **o),
        "balanced-bce": lambda z, y, **o: functional.binary_cross_entropy(z, y, bias, **o),
        "sigmoid-focal": lambda z, y, **o: functional.sigmoid_focal(z, y, 0.5, **o),
    }
    for name, call in calls.items():
        logits, targets = batch(name, soft, seed=3)
        expected = reference(name, logits, targets, smoothing, None, "none")
        torch.testing.assert_close(call(logits, targets, label_smoothing=smoothing), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("soft", [False, True])
def test_gradients(name, soft):
    logits, targets = batch(name, soft, rows=4, seed=1)
    objective = OBJECTIVES[name](label_smoothing=0.1)
    if not objective.own_weights:
        objective.set_class_weights(WEIGHTS)
    assert torch.autograd.gradcheck(lambda z: objective(z, targets), (logits.requires_grad_(),))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_hot_rows_are_labels_to_the_bit(name, smoothing, dtype):
    logits, labels = batch(name, soft=False, rows=33, seed=2)
    rows = torch.nn.functional.one_hot(labels, len(COUNTS)).to(dtype)
    objective = OBJECTIVES[name](label_smoothing=smoothing)
    if not objective.own_weights:
        objective.set_class_weights(WEIGHTS)
    z = logits.to(dtype)
    assert not torch.equal(objective(z, rows), objective(z, rows.roll(1, 0)))
    assert torch.equal(objective(z, rows), objective(z, labels))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("soft", [False, True])
def test_bfloat16_logits_are_computed_in_float32(name, soft):
    logits, targets = batch(name, soft, rows=64)
    rounded = logits.to(torch.bfloat16)
    objective = OBJECTIVES[name]()
    if not objective.own_weights:
        objective.set_class_weights(WEIGHTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = objective(rounded, targets.to(torch.bfloat16) if soft else targets)
    assert value.dtype == torch.float32
    same_input = targets.to(torch.bfloat16).double() if soft else targets
    torch.testing.assert_close(value.double(), objective(rounded.double(), same_input), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value.double(), objective(logits, targets), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_stay_finite(name):
    size = 10.0 if name == "ldam" else 300.0
    logits = (size * (2 * torch.eye(len(COUNTS)) - 1)).requires_grad_()
    right = torch.arange(len(COUNTS))
    for targets in (right, right.roll(1), torch.full((len(COUNTS), len(COUNTS)), 0.2)):
        value = OBJECTIVES[name]()(logits, targets)
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.isfinite(value), (name, targets)
        assert torch.isfinite(gradient).all(), (name, targets)


def test_margin_acts_where_the_probability_rounds_to_one():
    # Logits of 24 against 3 are certain in float32; the margin of 15 then makes the loss visible again.
    cosines = torch.tensor([[0.8, 0.1, 0.1]])
    value = functional.ldam(30 * cosines, torch.tensor([0]), torch.full((3,), 0.5), 30.0)
    expected = math.log1p(2 * math.exp(30 * (0.1 - 0.3)))
    assert torch.softmax(30 * cosines, 1)[0, 0] == 1.0
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_focal_gradient_is_finite_for_small_powers():
    logits = torch.tensor([[200.0, 0.0, 0.0], [25.0, 0.0, 0.0]], requires_grad=True)
    assert torch.softmax(logits, 1)[1, 0] == 1.0
    value = functional.focal(logits, torch.tensor([0, 0]), 0.1).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.isfinite(gradient).all()


def test_sigmoid_losses_agree_with_torch_and_torchvision():
    logits, labels = batch("bce", soft=False, rows=20)
    rows = torch.nn.functional.one_hot(labels, len(COUNTS)).double()
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(logits, rows) * len(COUNTS)
    torch.testing.assert_close(BCE()(logits, labels), theirs)
    torch.testing.assert_close(Focal(0.0, "sigmoid")(logits, labels), theirs)
    theirs = sigmoid_focal_loss(logits, rows, alpha=-1, gamma=2.0, reduction="none").sum(1).mean()
    torch.testing.assert_close(Focal(2.0, "sigmoid")(logits, labels), theirs)


def test_plain_losses_agree_with_torch():
    logits, labels = batch("cross-entropy", soft=False, rows=20)
    objective = CrossEntropy(label_smoothing=0.1)
    ours = objective(logits, labels)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1))
    objective = CrossEntropy()
    objective.set_class_weights(WEIGHTS)
    theirs = torch.nn.functional.cross_entropy(logits.float(), labels, weight=torch.tensor(WEIGHTS))
    torch.testing.assert_close(objective(logits.float(), labels), theirs)
