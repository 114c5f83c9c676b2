"""What we ask for: losses for long-tailed recognition. The door is `build_objective(config, prior)`."""

from __future__ import annotations

from relatum.objectives.base import Objective
from relatum.objectives.build import OBJECTIVES, build_objective
from relatum.objectives.deferred import DeferredReweighting
from relatum.objectives.functional import soft_targets
from relatum.objectives.losses import (
    LDAM,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LogitAdjusted,
    VectorScaling,
)
from relatum.objectives.terms import effective_number_weights, ldam_margins, vector_scaling_divisors

__all__ = [
    "LDAM",
    "OBJECTIVES",
    "BalancedSoftmax",
    "ClassBalanced",
    "CrossEntropy",
    "DeferredReweighting",
    "Focal",
    "LogitAdjusted",
    "Objective",
    "VectorScaling",
    "build_objective",
    "effective_number_weights",
    "ldam_margins",
    "soft_targets",
    "vector_scaling_divisors",
]
