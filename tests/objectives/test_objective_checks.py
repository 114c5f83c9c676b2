"""Mistakes in batches and settings are named, together with their cure."""

from __future__ import annotations

import pytest
import torch

from relatum.errors import ConfigError, DataError, ModelError
from relatum.objectives import (
    BCE,
    LADE,
    LDAM,
    BalancedBCE,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    InfluenceBalanced,
    LogitAdjusted,
    VectorScaling,
)
from relatum.prior import ClassPrior

PRIOR = ClassPrior([50, 5, 2])
LOGITS = torch.zeros(4, 3)
LABELS = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize("bad", [-1, 3, -100])
def test_label_out_of_range(bad):
    labels = LABELS.clone()
    assert torch.isfinite(CrossEntropy()(LOGITS, labels))
    labels[2] = bad
    with pytest.raises(DataError, match=rf"label {bad} is out of range for 3 classes; labels must be 0 to 2"):
        CrossEntropy()(LOGITS, labels)


@pytest.mark.parametrize(
    ("logits", "targets", "error", "words"),
    [
        (torch.zeros(4, 5), LABELS, ModelError, "5 logits.*3 classes.*num_classes=3"),
        (torch.zeros(4, 3, 2), LABELS, ModelError, "shape"),
        (torch.zeros(4, 3, dtype=torch.int64), LABELS, ModelError, "floating point"),
        (torch.zeros(0, 3), LABELS[:0], DataError, "empty"),
        (torch.zeros(8, 3), LABELS, DataError, r"relation\.targets"),
        (torch.zeros(5, 3), LABELS, DataError, "one target per row"),
        (torch.zeros(8, 3), torch.zeros(4, 3), DataError, r"relation\.targets"),
        (LOGITS, torch.zeros(4, 2), DataError, "2 classes.*3"),
        (LOGITS, torch.zeros(4, 3, dtype=torch.int64), DataError, r"targets\.float"),
        (LOGITS, LABELS.float(), DataError, "must be integers"),
        (LOGITS, LABELS.bool(), DataError, "must be integers"),
        (LOGITS, torch.zeros(4, 3, 1), DataError, "soft targets"),
    ],
)
def test_wrong_batch(logits, targets, error, words):
    with pytest.raises(error, match=words):
        BalancedSoftmax(PRIOR)(logits, targets)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.5, 0.5, 0.5], "row 2 sums to 1.5"),
        ([0.0, 0.0, 0.0], "row 2 sums to 0"),
        ([1.0, 1.0, 0.0], "Several labels"),
        ([1.5, -0.5, 0.0], "one is -0.5"),
        ([float("nan"), 0.5, 0.5], "row 2 sums to nan"),
    ],
)
def test_soft_targets_that_are_no_probabilities(row, words):
    rows = torch.full((4, 3), 1 / 3)
    for objective in (CrossEntropy(), BCE(), BalancedBCE(PRIOR), BalancedSoftmax(PRIOR)):
        assert torch.isfinite(objective(LOGITS, rows))
        assert torch.isfinite(objective(LOGITS, rows.bfloat16()))  # sums to 1.001
        wrong = rows.clone()
        wrong[2] = torch.tensor(row)
        for _ in range(2):  # on the CPU every batch is looked at
            with pytest.raises(DataError, match=words):
                objective(LOGITS, wrong)


def test_elsewhere_only_the_first_soft_batch_is_read(monkeypatch):
    objective, rows = CrossEntropy(), torch.full((4, 3), 0.5)
    monkeypatch.setattr(objective, "_rows_read", True)  # as after a first good batch
    on_meta = objective(LOGITS.to("meta"), rows.to("meta"))  # reading a value would raise here
    assert on_meta.device.type == "meta"
    with pytest.raises(DataError, match=r"sums to 1\.5"):
        objective(LOGITS, rows)


def test_other_integer_types_are_labels_too():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(CrossEntropy()(logits, LABELS.int()), CrossEntropy()(logits, LABELS))
    assert torch.equal(Focal()(logits, LABELS.to(torch.uint8)), Focal()(logits, LABELS))


def test_ldam_refuses_logits_that_are_no_cosines():
    objective = LDAM(PRIOR)
    near_one = torch.full((4, 3), 30.0 * 1.0078, dtype=torch.bfloat16)  # what bfloat16 may make of a cosine of 1
    assert torch.isfinite(objective(near_one, LABELS))
    with pytest.raises(ConfigError, match=r'but saw.*model\.head="cosine".*model\.scale=30'):
        objective(LOGITS - 60, LABELS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CrossEntropy(label_smoothing=1.1), "label_smoothing"),
        (lambda: CrossEntropy(reduction="men"), "did you mean 'mean'"),
        (lambda: LogitAdjusted(PRIOR, tau=float("nan")), "tau"),
        (lambda: VectorScaling(PRIOR, gamma=-0.1), "gamma"),
        (lambda: Focal(gamma=-0.5), "gamma"),
        (lambda: ClassBalanced(PRIOR, beta=1.0), "below 1"),
        (lambda: ClassBalanced(PRIOR, base="focall"), "did you mean 'focal'"),
        (lambda: Focal(activation="sigmod"), "did you mean 'sigmoid'"),
        (lambda: BalancedBCE(PRIOR, tau=float("inf")), "tau"),
        (lambda: BalancedBCE(PRIOR, shift="log(C)"), r"did you mean 'log\(C-1\)'"),
        (lambda: BalancedBCE(PRIOR, bias_prior="count"), "did you mean 'counts'"),
        (lambda: BalancedBCE(ClassPrior([5])), "at least two classes"),
        (lambda: BalancedBCE(ClassPrior([5, 4], test_prior=[1, 2]), shift="log(C-1)"), 'use shift="none"'),
        (lambda: LADE(PRIOR, alpha=-1.0), "alpha"),
        (lambda: LADE(PRIOR, penalty=-1.0), "penalty"),
        (lambda: LADE(PRIOR, importance="samples"), "did you mean 'sample'"),
        (lambda: LADE(PRIOR, reduction="none"), "must be 'mean'"),
        (lambda: InfluenceBalanced(PRIOR, alpha=0.0), "alpha"),
        (lambda: InfluenceBalanced(PRIOR, start=2.0), "start"),
        (lambda: InfluenceBalanced(PRIOR, gradient="constants"), "did you mean 'constant'"),
        (lambda: InfluenceBalanced(PRIOR).set_class_weights([1.0, 2.0, 3.0]), "correct twice"),
        (lambda: BCE().matching_head_bias(), "give num_classes"),
        (lambda: BCE(PRIOR).matching_head_bias(4), "there are 3"),
        (lambda: LDAM(PRIOR, margin=-1.0), "margin"),
        (lambda: LDAM(PRIOR, scale=0.0), "scale"),
        (lambda: ClassBalanced(PRIOR).set_class_weights(None), "correct twice"),
        (lambda: CrossEntropy(PRIOR).set_class_weights([1.0, 2.0]), "one per class"),
        (lambda: CrossEntropy().set_class_weights([1.0, 0.0]), "positive"),
        (lambda: CrossEntropy().set_class_weights([1.0, float("inf")]), "finite"),
        (lambda: Focal()(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)), "two classes"),
    ],
)
def test_wrong_settings(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_class_weights_come_and_go():
    objective = CrossEntropy()
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain = objective(logits, LABELS)
    objective.set_class_weights([1.0, 5.0, 9.0])
    assert not torch.isclose(objective(logits, LABELS), plain)
    with pytest.raises(ModelError, match="4 logits"):
        objective(torch.zeros(4, 4), LABELS)
    objective.set_class_weights(None)
    assert objective.class_weights is None
    assert torch.equal(objective(logits, LABELS), plain)


def test_class_weights_are_a_copy():
    weights = torch.ones(3)
    objective = CrossEntropy()
    objective.set_class_weights(weights)
    weights[0] = 100.0
    assert torch.equal(objective.class_weights, torch.ones(3))
