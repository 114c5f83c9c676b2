"""Second-stage tools: a better classifier for the rare classes of a model that is already trained, in seconds."""

from __future__ import annotations

from relatum.classifier.base import ClassifierTool
from relatum.classifier.disalign import AlignedClassifier, DisAlign
from relatum.classifier.features import CachedFeatures, FeatureSet, cache_features
from relatum.classifier.linear import fold, linear_classifier
from relatum.classifier.retrain import CRT, LWS
from relatum.classifier.scaling import LogitAdjustment, TauNorm, Temperature, best_temperature
from relatum.classifier.tools import TOOLS, Retuned, retune

__all__ = [
    "CRT",
    "LWS",
    "TOOLS",
    "AlignedClassifier",
    "CachedFeatures",
    "ClassifierTool",
    "DisAlign",
    "FeatureSet",
    "LogitAdjustment",
    "Retuned",
    "TauNorm",
    "Temperature",
    "best_temperature",
    "cache_features",
    "fold",
    "linear_classifier",
    "retune",
]
