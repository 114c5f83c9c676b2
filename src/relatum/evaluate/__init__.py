"""What did we get, for whom: scores of a model, from single metrics to everything at once."""

from __future__ import annotations

from relatum._door import make_callable
from relatum.evaluate.bootstrap import bootstrap_interval
from relatum.evaluate.calibration import (
    Reliability,
    confidence,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from relatum.evaluate.evaluate import collect, describe_adjustment, evaluate
from relatum.evaluate.knn import knn_logits
from relatum.evaluate.linear_probe import LinearProbe, linear_probe
from relatum.evaluate.metrics import (
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
from relatum.evaluate.posthoc import adjust_logits, tau_normalised
from relatum.evaluate.probe import EncodedSplits, encode_splits, probe_encoder, probe_features
from relatum.evaluate.scores import Scores, score

__all__ = [
    "EncodedSplits",
    "LinearProbe",
    "Reliability",
    "Scores",
    "adjust_logits",
    "balanced_accuracy",
    "bootstrap_interval",
    "class_accuracy",
    "class_precision",
    "collect",
    "confidence",
    "confusion_matrix",
    "describe_adjustment",
    "encode_splits",
    "evaluate",
    "expected_calibration_error",
    "group_accuracy",
    "knn_logits",
    "linear_probe",
    "macro_f1",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "predict_classes",
    "probe_encoder",
    "probe_features",
    "reliability",
    "score",
    "tau_normalised",
    "top_k_accuracy",
    "top_k_correct",
    "worst_class",
]

make_callable(__name__, evaluate)
