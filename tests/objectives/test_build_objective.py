"""From config to objective: a closed table in which every setting has its effect."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from relatum.config import ObjectiveConfig, ObjectiveName
from relatum.errors import ConfigError
from relatum.objectives import (
    BCE,
    LADE,
    LDAM,
    OBJECTIVES,
    BalancedBCE,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    DeferredReweighting,
    Focal,
    InfluenceBalanced,
    LogitAdjusted,
    VectorScaling,
    build_objective,
)
from relatum.prior import ClassPrior

PRIOR = ClassPrior([400, 30, 2, 1])
LABELS = torch.tensor([0, 1, 2, 3, 0, 0])
COSINES = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
FEATURES = torch.rand(6, 5, generator=torch.Generator().manual_seed(2))

EXPECTED = {
    "cross-entropy": CrossEntropy(),
    "balanced-softmax": BalancedSoftmax(PRIOR),
    "logit-adjusted": LogitAdjusted(PRIOR),
    "vector-scaling": VectorScaling(PRIOR),
    "focal": Focal(),
    "class-balanced": ClassBalanced(PRIOR),
    "ldam": LDAM(PRIOR),
    "bce": BCE(),
    "balanced-bce": BalancedBCE(PRIOR),
    "lade": LADE(PRIOR),
    "influence-balanced": InfluenceBalanced(PRIOR),
}
OWN_WEIGHTS = ("class-balanced", "influence-balanced")
EFFECTS = [
    ("logit-adjusted", {"tau": 2.0}),
    ("vector-scaling", {"tau": 2.0}),
    ("vector-scaling", {"gamma": 0.1}),
    ("focal", {"gamma": 2.0}),
    ("class-balanced", {"beta": 0.9}),
    ("class-balanced", {"base": "focal"}),
    ("class-balanced", {"base": "sigmoid"}),
    ("class-balanced", {"base": "sigmoid-focal"}),
    ("focal", {"activation": "sigmoid"}),
    ("balanced-bce", {"tau": 2.0}),
    ("balanced-bce", {"shift": "log(C-1)"}),
    ("balanced-bce", {"label_smoothing": 0.2, "bias_prior": "counts"}),
    ("lade", {"alpha": 0.5}),
    ("lade", {"penalty": 2.0}),
    ("lade", {"importance": "released"}),
    ("influence-balanced", {"ib_start": 0.0}),
    ("ldam", {"margin": 0.1}),
    ("ldam", {"scale": 10.0}),
    *[(name, {"label_smoothing": 0.2}) for name in EXPECTED],
    *[(name, {"drw_start": 0.0}) for name in EXPECTED if name not in OWN_WEIGHTS],
]


def value(config):
    objective = build_objective(config, PRIOR)
    objective.set_epoch(0, 10)
    return objective(COSINES, LABELS, FEATURES)


def test_the_table_is_the_vocabulary():
    assert set(OBJECTIVES) == set(get_args(ObjectiveName)) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_defaults_are_those_of_the_module(name):
    built = build_objective(ObjectiveConfig(name=name), PRIOR)
    assert type(built) is type(EXPECTED[name])
    assert torch.equal(built(COSINES, LABELS, FEATURES), EXPECTED[name](COSINES, LABELS, FEATURES))
    assert built.num_classes == 4


@pytest.mark.parametrize(("name", "change"), EFFECTS)
def test_each_setting_has_its_effect(name, change):
    config = ObjectiveConfig(name=name)
    assert torch.equal(value(config), value(config))
    assert not torch.isclose(value(dataclasses.replace(config, **change)), value(config), rtol=1e-4)


def test_every_field_is_covered():
    fields = {field.name for field in dataclasses.fields(ObjectiveConfig)}
    tested_below = {"influence"}
    assert {key for _, change in EFFECTS for key in change} == fields - {"name"} - tested_below


def test_settings_that_act_together():
    implied = ObjectiveConfig(name="balanced-bce", label_smoothing=0.2)
    assert not torch.isclose(value(implied), value(dataclasses.replace(implied, bias_prior="counts")), rtol=1e-4)
    active = ObjectiveConfig(name="influence-balanced", ib_start=0.0)
    torch.testing.assert_close(value(dataclasses.replace(active, alpha=500.0)), value(active) / 2)
    released = build_objective(dataclasses.replace(active, influence="released"), PRIOR)
    gradients = []
    for objective in (build_objective(active, PRIOR), released):
        logits = COSINES.clone().requires_grad_()
        gradients += torch.autograd.grad(objective(logits, LABELS, FEATURES), logits)
    assert not torch.allclose(*gradients, rtol=1e-2)


def test_gamma_and_beta_reach_the_inner_losses():
    focal = ObjectiveConfig(name="class-balanced", base="focal", gamma=2.0)
    assert torch.equal(value(focal), ClassBalanced(PRIOR, 0.9999, "focal", 2.0)(COSINES, LABELS))
    deferred = ObjectiveConfig(drw_start=0.5, beta=0.9)
    built = build_objective(deferred, PRIOR)
    assert isinstance(built, DeferredReweighting) and built.start == 0.5
    assert not torch.isclose(
        value(dataclasses.replace(deferred, drw_start=0.0)), value(ObjectiveConfig(drw_start=0.0)), rtol=1e-3
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "balanced-softmx"}, "did you mean 'balanced-softmax'"),
        ({"name": "balanced-softmax", "tau": 1.5}, "logit-adjusted"),
        ({"name": "class-balanced", "drw_start": 0.8}, "second time"),
        ({"name": "focal", "gamma": -0.5}, "gamma"),
        ({"name": "class-balanced", "gamma": 2.0}, "base 'softmax' does not use it"),
        ({"name": "class-balanced", "base": "sigmoid", "gamma": 2.0}, "base 'sigmoid' does not use it"),
        ({"name": "bce", "tau": 0.5}, "'bce' does not use it"),
        ({"name": "balanced-softmax", "shift": "log(C-1)"}, "'balanced-softmax' does not use it"),
        ({"name": "focal", "base": "sigmoid"}, "'focal' does not use it; leave it out.*activation"),
        ({"name": "lade", "ib_start": 0.2}, "'lade' does not use it"),
        ({"name": "balanced-bce", "alpha": 1.0}, "'balanced-bce' does not use it"),
        ({"name": "lade", "alpha": -0.5}, "alpha = -0.5 of lade"),
        ({"name": "influence-balanced", "alpha": 0.0}, "alpha = 0.0 of influence-balanced"),
        ({"name": "influence-balanced", "drw_start": 0.8}, "second time"),
        ({"name": "influence-balanced", "label_smoothing": 0.1, "influence": "released"}, "label_smoothing=0"),
    ],
)
def test_wrong_configs(change, words):
    with pytest.raises(ConfigError, match=words):
        build_objective(ObjectiveConfig(**change), PRIOR)
