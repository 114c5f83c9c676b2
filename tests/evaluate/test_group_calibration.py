"""Calibration by shot group and of sigmoid confidences, against loops in float64; scores of earlier versions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from relatum.config import EvalConfig
from relatum.errors import ConfigError
from relatum.evaluate import Scores, evaluate, score
from relatum.evaluate.calibration import sigmoid_confidence
from relatum.prior import ClassPrior

PRIOR = ClassPrior([300, 200, 90, 40, 9, 5])
MEMBERS = {"many": (0, 1), "medium": (2, 3), "few": (4, 5)}


def _samples(seed=0, samples=240, classes=6):
    rng = np.random.default_rng(seed)
    targets = rng.integers(classes, size=samples)
    logits = rng.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[targets] * rng.random((samples, 1))
    return logits, targets


def _reference(confidences, correct, bins=15):
    """ECE, MCE, and the counts, by a loop over bins that are closed on the right."""
    ece, mce, counts = 0.0, 0.0, []
    for b in range(bins):
        inside = [i for i, c in enumerate(confidences) if b / bins < c <= (b + 1) / bins]
        counts.append(len(inside))
        if inside:
            gap = abs(math.fsum(correct[i] for i in inside) - math.fsum(confidences[i] for i in inside)) / len(inside)
            ece, mce = ece + len(inside) / len(confidences) * gap, max(mce, gap)
    return ece, mce, counts


def _softmax_top(logits):
    return [max(math.exp(z) for z in row) / math.fsum(math.exp(z) for z in row) for row in logits.tolist()]


def test_each_group_has_the_calibration_of_its_own_samples():
    logits, targets = _samples()
    found = score(logits, targets, PRIOR).group_reliability
    confidences, correct = _softmax_top(logits), (logits.argmax(1) == targets).tolist()
    assert list(found) == ["many", "medium", "few"]
    for name, classes in MEMBERS.items():
        inside = [i for i, target in enumerate(targets) if target in classes]
        ece, mce, counts = _reference([confidences[i] for i in inside], [correct[i] for i in inside])
        assert found[name]["ece"] == pytest.approx(ece, abs=1e-12)
        assert found[name]["mce"] == pytest.approx(mce, abs=1e-12)
        assert found[name]["reliability"]["count"] == counts
        assert found[name]["count"] == len(inside) == sum(counts)
    assert len({round(entry["ece"], 6) for entry in found.values()}) == 3


def test_the_groups_pool_to_the_whole():
    scores = score(*_samples(), PRIOR)
    tables = [entry["reliability"] for entry in scores.group_reliability.values()]
    assert np.sum([table["count"] for table in tables], axis=0).tolist() == scores.reliability["count"]


def test_a_group_without_samples_or_classes_is_none():
    logits, targets = _samples()
    seen = targets < 4
    found = score(logits[seen], targets[seen], PRIOR).group_reliability
    assert found["few"] is None and found["many"] is not None
    assert score(logits, targets, ClassPrior([500] * 6)).group_reliability["medium"] is None
    assert score(logits, targets).group_reliability == {"many": None, "medium": None, "few": None}


def test_groups_follow_the_rule():
    logits, targets = _samples()
    prior = ClassPrior([100, 100, 100, 20, 20, 20])
    assert score(logits, targets, prior).group_reliability["many"] is None
    assert score(logits, targets, prior, rule="oltr").group_reliability["few"]["count"] == int((targets > 2).sum())


@pytest.mark.parametrize("bias", [0.0, -math.log(5), 2.5])
def test_sigmoid_confidences_are_scored_beside_the_softmax(bias):
    logits, targets = _samples()
    plain, both = score(logits, targets, PRIOR), score(logits, targets, PRIOR, sigmoid_bias=bias)
    assert plain.sigmoid is None
    confidences = [1 / (1 + math.exp(-(max(row) + bias))) for row in logits.tolist()]
    ece, mce, counts = _reference(confidences, (logits.argmax(1) == targets).tolist())
    assert both.sigmoid["bias"] == bias
    assert both.sigmoid["ece"] == pytest.approx(ece, abs=1e-12)
    assert both.sigmoid["mce"] == pytest.approx(mce, abs=1e-12)
    assert both.sigmoid["reliability"]["count"] == counts
    assert both.sigmoid["ece"] != plain.ece
    assert (both.ece, both.mce, both.reliability) == (plain.ece, plain.mce, plain.reliability)


def test_extreme_logits_have_defined_confidences():
    with np.errstate(all="raise", under="ignore"):
        assert sigmoid_confidence([[1e4, 0.0], [-1e4, -2e4], [0.0, -1.0]]).tolist() == [1.0, 0.0, 0.5]
    assert sigmoid_confidence(np.array([[3.0, 1.0]], np.float32), -1.0) == pytest.approx(
        1 / (1 + math.exp(-2)), abs=1e-15
    )
    with pytest.raises(ConfigError, match="finite"):
        sigmoid_confidence([[0.0, 1.0]], math.nan)


def test_scores_of_earlier_versions_are_read():
    scores = score(*_samples(), PRIOR, sigmoid_bias=0.0)
    values = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert Scores.from_dict(values) == scores
    for key in ("sigmoid", "group_reliability"):
        del values[key]
    old = Scores.from_dict(values)
    assert old.sigmoid is None and old.group_reliability == {}
    assert old.ece == scores.ece and old != scores


class _Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 6)
        nn.init.eye_(self.head.weight)

    def forward(self, x):
        return self.head(x)


def test_evaluate_passes_the_bias_on_unless_the_logits_are_corrected():
    logits, targets = _samples()
    model, pairs = _Linear(), [(torch.from_numpy(logits).float(), torch.from_numpy(targets))]
    found = evaluate(model, pairs, PRIOR, sigmoid_bias=-1.5)
    outputs = model(pairs[0][0]).detach()
    assert found.sigmoid == score(outputs, targets, PRIOR, sigmoid_bias=-1.5).sigmoid
    assert found.sigmoid["bias"] == -1.5
    assert evaluate(model, pairs, PRIOR).sigmoid is None
    for corrected in (EvalConfig(adjust_tau=1.0), EvalConfig(tau_norm=1.0)):
        assert evaluate(model, pairs, PRIOR, config=corrected, sigmoid_bias=-1.5).sigmoid is None
