"""Metrics against their definitions, and where they are not defined."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate import (
    balanced_accuracy,
    class_accuracy,
    class_precision,
    confusion_matrix,
    group_accuracy,
    macro_f1,
    negative_log_likelihood,
    predict_classes,
    top_k_accuracy,
    top_k_correct,
    worst_class,
)


def test_import_needs_no_test_library():
    probe = "import sys, relatum.evaluate; print(sorted({'torchmetrics', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_confusion_rows_are_true_classes():
    assert confusion_matrix([1, 1, 2], [0, 1, 0], 3).tolist() == [[0, 1, 1], [0, 1, 0], [0, 0, 0]]


def test_metrics_equal_naive_loops():
    rng = np.random.default_rng(3)
    logits, targets = rng.normal(size=(90, 7)), rng.integers(7, size=90)
    nll, hits, top3 = 0.0, {k: [] for k in range(7)}, 0
    for row, label in zip(logits, targets, strict=True):
        nll += -math.log(math.exp(row[label]) / sum(math.exp(z) for z in row)) / 90
        order = sorted(range(7), key=lambda k, row=row: -row[k])
        hits[label].append(order[0] == label)
        top3 += label in order[:3]
    confusion = confusion_matrix(predict_classes(logits), targets, 7)
    recalls = [sum(hits[k]) / len(hits[k]) for k in range(7)]
    assert negative_log_likelihood(logits, targets) == pytest.approx(nll, abs=1e-12)
    assert class_accuracy(confusion) == pytest.approx(recalls)
    assert balanced_accuracy(confusion) == pytest.approx(sum(recalls) / 7)
    assert top_k_accuracy(logits, targets, 3) == pytest.approx(top3 / 90)
    assert worst_class(class_accuracy(confusion)) == int(np.argmin(recalls))


def test_absent_class_is_undefined_not_zero():
    confusion = confusion_matrix([0, 0, 1, 0, 0], [0, 0, 0, 2, 2], 4)  # classes 1 and 3 absent, 2 and 3 never predicted
    recall, precision = class_accuracy(confusion), class_precision(confusion)
    assert np.isnan(recall).tolist() == [False, True, False, True]
    assert np.isnan(precision).tolist() == [False, False, True, True]
    assert recall[2] == 0 and precision[1] == 0
    assert balanced_accuracy(confusion) == pytest.approx((2 / 3 + 0) / 2)
    assert macro_f1(confusion) == pytest.approx((2 * 2 / (3 + 4) + 0) / 2)
    assert worst_class(recall) == 2


def test_groups_without_samples_are_none():
    accuracies = [0.5, math.nan, 0.25]
    assert group_accuracy(accuracies, [0, 2]) == pytest.approx(0.375)
    assert group_accuracy(accuracies, [0, 1]) == 0.5
    assert group_accuracy(accuracies, []) is None
    assert group_accuracy(accuracies, [1]) is None
    assert worst_class([math.nan, math.nan]) is None


def test_top_k_beyond_the_classes_and_ties():
    logits = torch.tensor([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    assert predict_classes(logits).tolist() == [0, 1]
    assert top_k_correct(logits, [0, 2], 1).tolist() == [True, False]
    assert top_k_correct(logits, [2, 2], 2).tolist() == [False, True]
    assert top_k_accuracy(logits, [2, 0], 2) == 0.0
    assert top_k_accuracy(logits, [2, 0], 3) == top_k_accuracy(logits, [2, 0], 50) == 1.0


def test_nll_survives_large_logits_and_half_precision():
    assert negative_log_likelihood([[1e4, 0.0]], [0]) == 0.0
    assert negative_log_likelihood([[1e4, 0.0]], [1]) == pytest.approx(1e4)
    half = torch.tensor([[0.5, -0.5]], dtype=torch.bfloat16)
    assert negative_log_likelihood(half, [0]) == pytest.approx(math.log1p(math.exp(-1)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: confusion_matrix([0], [3], 3), DataError, "label 3 is out of range for 3 classes"),
        (lambda: confusion_matrix([-1], [0], 3), DataError, "prediction -1"),
        (lambda: confusion_matrix([0, 1], [0], 3), DataError, "2 predictions for 1 targets"),
        (lambda: top_k_accuracy([[0.0, 1.0]], [0, 1]), DataError, "1 rows of logits for 2 targets"),
        (lambda: top_k_accuracy(np.zeros((0, 2)), np.zeros(0, int)), DataError, "no samples"),
        (lambda: top_k_accuracy([[0.0, 1.0]], [[0.5, 0.5]]), DataError, "soft targets"),
        (lambda: top_k_accuracy([[0.0, 1.0]], [0.5]), DataError, "whole-number"),
        (lambda: top_k_accuracy([[0.0, 1.0]], [0], 0), ConfigError, "at least 1"),
        (lambda: predict_classes([[math.nan, 1.0], [0.0, 1.0]]), ModelError, "not finite for 1 of 2"),
        (lambda: predict_classes([0.0, 1.0]), ModelError, "shape"),
        (lambda: macro_f1(np.zeros((2, 2))), DataError, "empty"),
        (lambda: class_accuracy(np.zeros((2, 3))), DataError, r"\(K, K\)"),
    ],
)
def test_user_errors_are_clear(call, error, words):
    with pytest.raises(error, match=words):
        call()
