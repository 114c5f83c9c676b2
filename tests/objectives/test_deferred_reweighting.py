"""Deferred re-weighting switches at the right epoch, on any objective, and undoes itself."""

from __future__ import annotations

import pytest
import torch

from relatum.errors import ConfigError
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
)
from relatum.prior import ClassPrior

PRIOR = ClassPrior([500, 20, 1])
LABELS = torch.tensor([0, 0, 1, 2])
COSINES = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("start", "epochs", "first"),
    [(0.8, 200, 160), (0.8, 10, 8), (0.07, 100, 7), (0.5, 5, 3), (0.0, 4, 0), (0.99, 3, 3)],
)
def test_switches_at_the_share_of_epochs(start, epochs, first):
    objective = DeferredReweighting(CrossEntropy(), PRIOR, start, beta=0.99)
    active = []
    for epoch in range(epochs):
        objective.set_epoch(epoch, epochs)
        active.append(objective.class_weights is not None)
    assert active == [epoch >= first for epoch in range(epochs)]


def test_start_one_is_never():
    objective = DeferredReweighting(CrossEntropy(), PRIOR, 1.0)
    for epoch in (0, 9, 10, 11):
        objective.set_epoch(epoch, 10)
        assert objective.class_weights is None
    assert not objective.corrects_prior


@pytest.mark.parametrize(
    "make",
    [
        CrossEntropy,
        Focal,
        lambda: BalancedSoftmax(PRIOR),
        lambda: LogitAdjusted(PRIOR, 0.5),
        lambda: VectorScaling(PRIOR),
        lambda: LDAM(PRIOR),
        BCE,
        lambda: BalancedBCE(PRIOR, 1.3),
        lambda: Focal(2.0, "sigmoid"),
        lambda: LADE(PRIOR),
    ],
)
def test_fits_any_objective(make):
    plain, weighted = make(), make()
    weighted.set_class_weights(effective_number_weights(PRIOR, 0.999))
    before, after = plain(COSINES, LABELS), weighted(COSINES, LABELS)
    assert not torch.isclose(before, after, rtol=1e-3)
    deferred = DeferredReweighting(make(), PRIOR, 0.5, beta=0.999)
    assert deferred.corrects_prior
    assert torch.equal(deferred(COSINES, LABELS), before)
    for epoch, expected in ((0, before), (5, after), (9, after), (4, before)):  # the last one: a run set back
        deferred.set_epoch(epoch, 10)
        assert torch.equal(deferred(COSINES, LABELS), expected)


def test_carries_settings_of_the_objective():
    deferred = DeferredReweighting(CrossEntropy(reduction="none", label_smoothing=0.1), PRIOR)
    assert (deferred.reduction, deferred.label_smoothing, deferred.num_classes) == ("none", 0.1, 3)
    assert deferred(COSINES, LABELS).shape == (4,)
    assert deferred.accepts_soft_targets and not deferred.needs_features
    assert not DeferredReweighting(LADE(PRIOR), PRIOR).accepts_soft_targets
    assert torch.equal(deferred.matching_head_bias(), torch.zeros(3))
    shifted = BalancedBCE(PRIOR, shift="log(C-1)")
    assert torch.equal(DeferredReweighting(shifted, PRIOR).matching_head_bias(), shifted.matching_head_bias())
    assert DeferredReweighting(BCE(), PRIOR).matching_head_bias().tolist() == pytest.approx([-0.6931472] * 3)


def test_weights_already_there_are_refused():
    weighted = CrossEntropy()
    weighted.set_class_weights([1.0, 2.0, 3.0])
    for objective in (
        ClassBalanced(PRIOR),
        InfluenceBalanced(PRIOR),
        weighted,
        DeferredReweighting(CrossEntropy(), PRIOR),
    ):
        with pytest.raises(ConfigError, match=r"already weighs.*second time.*cross-entropy"):
            DeferredReweighting(objective, PRIOR)
    with pytest.raises(ConfigError, match=r"start = 1\.5"):
        DeferredReweighting(CrossEntropy(), PRIOR, 1.5)
