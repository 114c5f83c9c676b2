"""Our metrics against torchmetrics and scikit-learn. The only file that imports torchmetrics, which is slow to load."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_confusion_matrix,
)

from relatum.evaluate import score
from relatum.prior import ClassPrior


def _random_case(seed, samples=700, classes=12, absent=()):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=generator)
    targets = torch.randint(classes, (samples,), generator=generator)
    for label in absent:
        targets[targets == label] = (label + 1) % classes
    # Half of the samples are made easy, so that accuracy and confidence are far from chance.
    logits[torch.arange(samples // 2), targets[: samples // 2]] += 3
    return logits, targets


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_equal_torchmetrics(seed):
    logits, targets = _random_case(seed)
    ours = score(logits, targets, ClassPrior([30] * 12), bootstrap=0)
    assert ours.top1 == pytest.approx(multiclass_accuracy(logits, targets, 12, average="micro").item(), abs=1e-6)
    assert ours.top5 == pytest.approx(
        multiclass_accuracy(logits, targets, 12, average="micro", top_k=5).item(), abs=1e-6
    )
    per_class = multiclass_accuracy(logits, targets, 12, average="none")
    assert [c["accuracy"] for c in ours.per_class] == pytest.approx(per_class.tolist(), abs=1e-6)
    assert ours.confusion == multiclass_confusion_matrix(logits, targets, 12).tolist()
    for norm, value in (("l1", ours.ece), ("max", ours.mce)):
        theirs = multiclass_calibration_error(logits.softmax(-1).double(), targets, 12, n_bins=15, norm=norm)
        assert value == pytest.approx(theirs.item(), abs=1e-6)
        assert value > 0.01


@pytest.mark.parametrize("absent", [(), (3,), (0, 10)])
def test_scores_equal_scikit_learn(absent):
    logits, targets = _random_case(5, absent=absent)
    true, predicted = targets.numpy(), logits.argmax(1).numpy()
    present = np.unique(true)
    ours = score(logits, targets, ClassPrior([30] * 12), bootstrap=0)
    assert len(present) == 12 - len(absent)
    assert ours.top1 == pytest.approx(sk.accuracy_score(true, predicted))
    with warnings.catch_warnings():  # scikit-learn warns about predictions of classes that are not in the targets
        warnings.simplefilter("ignore")
        assert ours.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(true, predicted))
    assert ours.macro_f1 == pytest.approx(sk.f1_score(true, predicted, average="macro", labels=present))
    assert ours.confusion == sk.confusion_matrix(true, predicted, labels=np.arange(12)).tolist()
    assert ours.top5 == pytest.approx(sk.top_k_accuracy_score(true, logits.numpy(), k=5, labels=np.arange(12)))
    assert ours.nll == pytest.approx(sk.log_loss(true, logits.double().softmax(1).numpy(), labels=np.arange(12)))
    precision = sk.precision_score(true, predicted, average=None, labels=np.arange(12), zero_division=np.nan)
    recall = sk.recall_score(true, predicted, average=None, labels=np.arange(12), zero_division=np.nan)
    assert [c["precision"] for c in ours.per_class] == pytest.approx(_nan_to_none(precision))
    assert [c["accuracy"] for c in ours.per_class] == pytest.approx(_nan_to_none(recall))


def _nan_to_none(values):
    return [None if np.isnan(v) else v for v in values]
