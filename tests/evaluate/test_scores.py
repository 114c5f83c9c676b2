"""Scores: groups, JSON, properties."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.errors import CheckpointError, DataError
from relatum.evaluate import Scores, score
from relatum.prior import ClassPrior

KEYS = [
    *("split", "samples", "classes", "top1", "top5", "balanced_accuracy", "macro_f1", "nll", "ece", "mce", "rule"),
    *("groups", "per_class", "worst_class", "interval", "reliability", "confusion", "adjustment"),
    *("sigmoid", "group_reliability"),
]


def _one_hot_logits(predictions, classes):
    return 5.0 * np.eye(classes)[predictions]


def _random(seed, samples=60, classes=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, classes)), np.concatenate(
        [np.arange(classes), rng.integers(classes, size=samples - classes)]
    )


def test_group_boundaries_under_both_rules():
    prior = ClassPrior([101, 100, 20, 19], names=["a", "b", "c", "d"])
    targets = np.arange(4).repeat(2)
    predictions = np.array([0, 0, 1, 0, 2, 2, 0, 0])  # accuracies 1, 0.5, 1, 0
    standard = score(_one_hot_logits(predictions, 4), targets, prior).groups
    assert standard == {
        "many": {"accuracy": 1.0, "classes": 1},
        "medium": {"accuracy": 0.75, "classes": 2},
        "few": {"accuracy": 0.0, "classes": 1},
    }
    oltr = score(_one_hot_logits(predictions, 4), targets, prior, rule="oltr")
    assert oltr.rule == "oltr"
    assert oltr.groups == {
        "many": {"accuracy": 0.75, "classes": 2},
        "medium": {"accuracy": None, "classes": 0},
        "few": {"accuracy": 0.5, "classes": 2},
    }


def test_cifar100_long_tail_has_35_35_30_classes():
    counts = [int(500 * 0.01 ** (k / 99) + 1e-9) for k in range(100)]
    assert sum(counts) == 10847
    scores = score(np.eye(100), np.arange(100), ClassPrior(counts))
    assert [scores.groups[g]["classes"] for g in ("many", "medium", "few")] == [35, 35, 30]


def test_group_accuracy_is_the_mean_over_classes_not_samples():
    predictions, targets = [0] * 9 + [0], [0] * 9 + [1]
    scores = score(_one_hot_logits(predictions, 2), targets, ClassPrior([500, 400]))
    assert scores.top1 == 0.9
    assert scores.groups["many"]["accuracy"] == scores.balanced_accuracy == 0.5
    assert scores.worst_class == {"name": "1", "accuracy": 0.0}


def test_absent_classes_and_groups_are_none_in_json():
    prior = ClassPrior([200, 50, 5], names=["cat", "dog", "owl"])
    scores = score(_one_hot_logits([0, 1, 1], 3), [0, 0, 1], prior)
    assert scores.per_class[2] == {
        "name": "owl",
        "train_count": 5,
        "support": 0,
        "accuracy": None,
        "precision": None,
    }
    assert scores.per_class[0] == {
        "name": "cat",
        "train_count": 200,
        "support": 2,
        "accuracy": 0.5,
        "precision": 1.0,
    }
    assert scores.groups["few"] == {"accuracy": None, "classes": 1}
    assert scores.row() == {"All": pytest.approx(2 / 3), "Many": 0.5, "Medium": 1.0, "Few": None, "ECE": scores.ece}
    assert "NaN" not in json.dumps(scores.to_dict())


def test_one_sample_is_defined():
    scores = score([[2.0, 0.0, 0.0]], [0], ClassPrior([3, 2, 1]))
    probability = np.exp(2) / (np.exp(2) + 2)
    assert (scores.samples, scores.top1, scores.top5, scores.balanced_accuracy, scores.macro_f1) == (1, 1, 1, 1, 1)
    assert scores.nll == pytest.approx(-np.log(probability))
    assert scores.ece == scores.mce == pytest.approx(1 - probability)
    assert scores.interval == {"low": 1.0, "high": 1.0, "level": 0.95}


def test_without_a_prior_there_are_no_groups():
    logits, targets = _random(0)
    scores = score(logits, targets)
    assert scores.rule == "n/a"
    assert scores.groups == {g: {"accuracy": None, "classes": 0} for g in ("many", "medium", "few")}
    assert scores.per_class[5]["name"] == "5" and scores.per_class[5]["train_count"] is None
    assert scores.top1 == score(logits, targets, ClassPrior([9] * 6)).top1


def test_json_round_trip():
    logits, targets = _random(1)
    prior = ClassPrior([300, 200, 90, 40, 9, 0])
    scores = score(logits, targets, prior, split="val", bootstrap=50, adjustment="by hand")
    values = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert list(values) == KEYS
    assert Scores.from_dict(values) == scores
    values["confusion"][0][0] += 1
    assert Scores.from_dict(values) != scores
    scores.to_dict()["groups"]["few"]["classes"] = 77
    assert scores.groups["few"]["classes"] == 2


def test_foreign_json_is_refused_by_name():
    logits, targets = _random(1)
    values = score(logits, targets).to_dict()
    with pytest.raises(CheckpointError, match=r"'top_1'.*did you mean 'top1'"):
        Scores.from_dict({**values, "top_1": 0.5})
    del values["ece"]
    with pytest.raises(CheckpointError, match="lack ece"):
        Scores.from_dict(values)


def test_bootstrap_zero_is_off_and_wrong_width_is_refused():
    logits, targets = _random(2)
    assert score(logits, targets, bootstrap=0).interval is None
    interval = score(logits, targets, bootstrap=200).interval
    assert interval["low"] < score(logits, targets).top1 < interval["high"]
    with pytest.raises(DataError, match="6 classes cannot be scored with counts of 2"):
        score(logits, targets, ClassPrior([1, 2]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(6, 80))
def test_order_of_samples_does_not_matter(seed, samples):
    logits, targets = _random(seed, samples)
    order = np.random.default_rng(seed).permutation(samples)
    prior = ClassPrior([200, 150, 60, 30, 10, 2])
    one, other = score(logits, targets, prior).to_dict(), score(logits[order], targets[order], prior).to_dict()
    for key in ("nll", "ece", "mce"):
        assert one.pop(key) == pytest.approx(other.pop(key), abs=1e-12)
    bins, other_bins = one.pop("reliability"), other.pop("reliability")
    assert bins["count"] == other_bins["count"] and bins["accuracy"] == other_bins["accuracy"]
    assert bins["confidence"] == pytest.approx(other_bins["confidence"], abs=1e-12)
    shots, other_shots = one.pop("group_reliability"), other.pop("group_reliability")
    for name, entry in shots.items():
        assert entry["reliability"]["count"] == other_shots[name]["reliability"]["count"]
        assert entry["ece"] == pytest.approx(other_shots[name]["ece"], abs=1e-12)
    assert one == other


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), counts=st.lists(st.integers(1, 300), min_size=6, max_size=6))
def test_groups_weighted_by_size_average_to_balanced_accuracy(seed, counts):
    logits, targets = _random(seed)
    scores = score(logits, targets, ClassPrior(counts), bootstrap=0)
    filled = [g for g in scores.groups.values() if g["classes"]]
    assert sum(g["classes"] for g in filled) == 6
    assert sum(g["accuracy"] * g["classes"] for g in filled) / 6 == pytest.approx(scores.balanced_accuracy, abs=1e-12)
    assert 0 <= scores.ece <= scores.mce <= 1
