"""What we ask for: losses for long-tailed recognition. The door is `build_objective(config, prior)`."""

from __future__ import annotations

from relatum.objectives.base import Objective
from relatum.objectives.build import OBJECTIVES, build_objective
from relatum.objectives.deferred import DeferredReweighting
from relatum.objectives.functional import soft_targets
from relatum.objectives.influence import InfluenceBalanced, influence_size
from relatum.objectives.lade import LADE, lade_regulariser
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
from relatum.objectives.terms import (
    balanced_bce_bias,
    effective_number_weights,
    inverse_frequency_weights,
    ldam_margins,
    vector_scaling_divisors,
)

__all__ = [
    "BCE",
    "LADE",
    "LDAM",
    "OBJECTIVES",
    "BalancedBCE",
    "BalancedSoftmax",
    "ClassBalanced",
    "CrossEntropy",
    "DeferredReweighting",
    "Focal",
    "InfluenceBalanced",
    "LogitAdjusted",
    "Objective",
    "VectorScaling",
    "balanced_bce_bias",
    "build_objective",
    "effective_number_weights",
    "influence_size",
    "inverse_frequency_weights",
    "lade_regulariser",
    "ldam_margins",
    "soft_targets",
    "vector_scaling_divisors",
]
