"""The door of this room: from a config to an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from relatum.config import ObjectiveConfig
from relatum.errors import ConfigError, suggest
from relatum.objectives.base import Objective
from relatum.objectives.checks import require
from relatum.objectives.deferred import DeferredReweighting
from relatum.objectives.influence import InfluenceBalanced
from relatum.objectives.lade import LADE
from relatum.objectives.losses import (
    LDAM,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LogitAdjusted,
    VectorScaling,
)
from relatum.objectives.sigmoid import BCE, BalancedBCE
from relatum.prior import ClassPrior


def build_objective(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    """Return the objective that `config` names, inside `DeferredReweighting` where `drw_start` is below 1.

    Raises:
        ConfigError: an unknown name, a value out of range, or a combination that would correct twice.
    """
    if config.name not in OBJECTIVES:
        raise ConfigError(f"unknown objective '{config.name}'; {suggest(config.name, OBJECTIVES)}")
    _check_options_are_used(config)
    objective = OBJECTIVES[config.name](config, prior)
    if config.drw_start < 1:
        return DeferredReweighting(objective, prior, config.drw_start, config.beta)
    return objective


# Options beside label_smoothing and drw_start, which all objectives have.
_USED: dict[str, tuple[str, ...]] = {
    "cross-entropy": (),
    "balanced-softmax": ("tau",),
    "logit-adjusted": ("tau",),
    "vector-scaling": ("tau", "gamma"),
    "focal": ("gamma", "activation"),
    "class-balanced": ("beta", "base", "gamma"),
    "ldam": ("margin", "scale"),
    "bce": (),
    "balanced-bce": ("tau", "shift", "bias_prior"),
    "lade": ("alpha", "penalty", "importance"),
    "influence-balanced": ("alpha", "ib_start", "influence"),
}


def _check_options_are_used(config: ObjectiveConfig) -> None:
    """Refuse options that the objective would ignore: whoever set one believes that it acts."""
    used = {"name", "label_smoothing", "drw_start", *_USED[config.name]} | ({"beta"} if config.drw_start < 1 else set())
    for option in fields(config):
        if option.name not in used and getattr(config, option.name) != option.default:
            raise ConfigError(
                f"objective.{option.name} is set, but '{config.name}' does not use it; leave it out. "
                f"'{config.name}' uses: {', '.join(sorted(used - {'name'}))}."
            )


def _cross_entropy(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return CrossEntropy(prior, label_smoothing=config.label_smoothing)


def _balanced_softmax(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    require(
        config.tau == 1,
        f"balanced-softmax has tau = 1 by definition, not {config.tau}; "
        'use objective.name="logit-adjusted" for another tau.',
    )
    return BalancedSoftmax(prior, label_smoothing=config.label_smoothing)


def _logit_adjusted(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return LogitAdjusted(prior, config.tau, label_smoothing=config.label_smoothing)


def _vector_scaling(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return VectorScaling(prior, _gamma(config, 0.3), config.tau, label_smoothing=config.label_smoothing)


def _focal(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return Focal(_gamma(config, 1.0), config.activation, prior=prior, label_smoothing=config.label_smoothing)


def _class_balanced(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    require(
        config.gamma == -1 or config.base.endswith("focal"),
        f"objective.gamma is set, but class-balanced with base '{config.base}' does not use it; leave it out, or set "
        'objective.base to "focal" or "sigmoid-focal".',
    )
    gamma = _gamma(config, 1.0)
    return ClassBalanced(prior, config.beta, config.base, gamma, label_smoothing=config.label_smoothing)


def _ldam(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return LDAM(prior, config.margin, config.scale, label_smoothing=config.label_smoothing)


def _bce(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    return BCE(prior, label_smoothing=config.label_smoothing)


def _balanced_bce(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    smoothing = config.label_smoothing
    return BalancedBCE(prior, config.tau, config.shift, config.bias_prior, label_smoothing=smoothing)


def _lade(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    alpha = 0.1 if config.alpha == -1 else config.alpha
    return LADE(prior, alpha, config.penalty, config.importance, label_smoothing=config.label_smoothing)


def _influence_balanced(config: ObjectiveConfig, prior: ClassPrior) -> Objective:
    alpha = 1000.0 if config.alpha == -1 else config.alpha
    smoothing = config.label_smoothing
    return InfluenceBalanced(prior, alpha, config.ib_start, config.influence, label_smoothing=smoothing)


def _gamma(config: ObjectiveConfig, default: float) -> float:
    """Return gamma, -1 being the default of the loss; other negative values are refused by the loss."""
    return default if config.gamma == -1 else config.gamma


OBJECTIVES: dict[str, Callable[[ObjectiveConfig, ClassPrior], Objective]] = {
    "cross-entropy": _cross_entropy,
    "balanced-softmax": _balanced_softmax,
    "logit-adjusted": _logit_adjusted,
    "vector-scaling": _vector_scaling,
    "focal": _focal,
    "class-balanced": _class_balanced,
    "ldam": _ldam,
    "bce": _bce,
    "balanced-bce": _balanced_bce,
    "lade": _lade,
    "influence-balanced": _influence_balanced,
}
