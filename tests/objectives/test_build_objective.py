"""From config to objective: a closed table in which every setting has its effect."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from relatum.config import ObjectiveConfig, ObjectiveName
from relatum.errors import ConfigError
from relatum.objectives import (
    LDAM,
    OBJECTIVES,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    DeferredReweighting,
    Focal,
    LogitAdjusted,
    VectorScaling,
    build_objective,
)
from relatum.prior import ClassPrior

PRIOR = ClassPrior([400, 30, 2, 0])
LABELS = torch.tensor([0, 1, 2, 3, 0, 0])
COSINES = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))

EXPECTED = {
    "cross-entropy": CrossEntropy(),
    "balanced-softmax": BalancedSoftmax(PRIOR),
    "logit-adjusted": LogitAdjusted(PRIOR),
    "vector-scaling": VectorScaling(PRIOR),
    "focal": Focal(),
    "class-balanced": ClassBalanced(PRIOR),
    "ldam": LDAM(PRIOR),
}
EFFECTS = [
    ("logit-adjusted", {"tau": 2.0}),
    ("vector-scaling", {"tau": 2.0}),
    ("vector-scaling", {"gamma": 0.1}),
    ("focal", {"gamma": 2.0}),
    ("class-balanced", {"beta": 0.9}),
    ("class-balanced", {"base": "focal"}),
    ("ldam", {"margin": 0.1}),
    ("ldam", {"scale": 10.0}),
    *[(name, {"label_smoothing": 0.2}) for name in EXPECTED],
    *[(name, {"drw_start": 0.0}) for name in EXPECTED if name != "class-balanced"],
]


def value(config):
    objective = build_objective(config, PRIOR)
    objective.set_epoch(0, 10)
    return objective(COSINES, LABELS)


def test_the_table_is_the_vocabulary():
    assert set(OBJECTIVES) == set(get_args(ObjectiveName)) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_defaults_are_those_of_the_module(name):
    built = build_objective(ObjectiveConfig(name=name), PRIOR)
    assert type(built) is type(EXPECTED[name])
    assert torch.equal(built(COSINES, LABELS), EXPECTED[name](COSINES, LABELS))
    assert built.num_classes == 4


@pytest.mark.parametrize(("name", "change"), EFFECTS)
def test_each_setting_has_its_effect(name, change):
    config = ObjectiveConfig(name=name)
    assert torch.equal(value(config), value(config))
    assert not torch.isclose(value(dataclasses.replace(config, **change)), value(config), rtol=1e-4)


def test_every_field_is_covered():
    fields = {field.name for field in dataclasses.fields(ObjectiveConfig)}
    assert {key for _, change in EFFECTS for key in change} == fields - {"name"}


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
    ],
)
def test_wrong_configs(change, words):
    with pytest.raises(ConfigError, match=words):
        build_objective(ObjectiveConfig(**change), PRIOR)
