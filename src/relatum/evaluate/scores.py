"""Scores: everything we say about one model on one split, ready for JSON."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from relatum.errors import CheckpointError, DataError, suggest
from relatum.evaluate import calibration, metrics
from relatum.evaluate._arrays import ArrayLike, FloatArray, IntArray, as_pair
from relatum.evaluate.bootstrap import bootstrap_interval
from relatum.prior import GROUPS, ClassPrior

LEVEL = 0.95

LARGEST_CONFUSION = 1000

# Not in the scores.json of earlier versions, which are read all the same.
_ADDED_LATER = ("sigmoid", "group_reliability")


@dataclass(frozen=True)
class Scores:
    """Result of an evaluation. All fractions lie in [0, 1]; what is not defined is None, never 0 or NaN.

    Args:
        split: name of the data that was scored.
        samples: N, how many samples that were.
        classes: K, the number of classes.
        top1: share of samples whose largest logit is the true class.
        top5: share of samples whose five largest logits (all K, if fewer) hold the true class.
        balanced_accuracy: mean of the class accuracies.
        macro_f1: mean of the class F1 values.
        nll: mean negative log-likelihood, in nats.
        ece: expected calibration error, 15 bins.
        mce: maximum calibration error over the non-empty bins.
        rule: the shot rule behind `groups`, "n/a" without class counts.
        groups: many, medium and few: {"accuracy": mean of the class accuracies, "classes": size of the group}.
        per_class: {"name", "train_count", "support", "accuracy", "precision"} of each class, in the order of the ids.
        worst_class: {"name", "accuracy"} of the least recognised class.
        interval: {"low", "high", "level"} of top1; None when the bootstrap is off.
        reliability: {"edges", "count", "accuracy", "confidence"} of the confidence bins.
        confusion: counts, rows are true classes; None above 1,000 classes, where the table would be huge.
        adjustment: the post-hoc correction in words, or "none".
        sigmoid: {"bias", "ece", "mce", "reliability"} with sigmoid(largest logit + bias) as confidence; None for models
            that were trained on a softmax, and where a post-hoc correction has changed the logits.
        group_reliability: many, medium and few: {"ece", "mce", "count", "reliability"} of the samples whose true class
            is in the group, with softmax confidences; None for a group without samples. Empty in older files.
    """

    split: str
    samples: int
    classes: int
    top1: float
    top5: float
    balanced_accuracy: float
    macro_f1: float
    nll: float
    ece: float
    mce: float | None
    rule: str
    groups: dict[str, dict[str, Any]]
    per_class: list[dict[str, Any]]
    worst_class: dict[str, Any] | None
    interval: dict[str, float] | None
    reliability: dict[str, list[Any]]
    confusion: list[list[int]] | None
    adjustment: str = "none"
    sigmoid: dict[str, Any] | None = None
    group_reliability: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return an independent copy made of JSON types only."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scores:
        """Undo `to_dict`; missing or unknown keys are a `CheckpointError`, except those that older files lack."""
        expected = {entry.name for entry in fields(cls)}
        for key in values:
            if key not in expected:
                raise CheckpointError(f"scores hold the unknown key '{key}'; {suggest(key, expected)}")
        missing = sorted(expected - set(values) - set(_ADDED_LATER))
        if missing:
            raise CheckpointError(f"scores lack {', '.join(missing)}; evaluate the run again to renew them.")
        return cls(**copy.deepcopy(dict(values)))

    def row(self) -> dict[str, float | None]:
        """Return the usual columns of a results table: All, Many, Medium, Few and ECE, as fractions."""
        groups = {name.capitalize(): self.groups[name]["accuracy"] for name in GROUPS}
        return {"All": self.top1, **groups, "ECE": self.ece}

    def numbers(self) -> dict[str, float | None]:
        """Return what a log of the training keeps."""
        groups = {name: self.groups[name]["accuracy"] for name in GROUPS}
        return {"top1": self.top1, "top5": self.top5, **groups, "nll": self.nll, "ece": self.ece}

    def shown(self) -> dict[str, str]:
        """Return what a person sees while training."""
        return {name: "n/a" if value is None else f"{100 * value:.1f} %" for name, value in self.row().items()}


def score(
    logits: ArrayLike,
    targets: ArrayLike,
    prior: ClassPrior | None = None,
    *,
    split: str = "test",
    rule: str = "standard",
    bootstrap: int = 1000,
    adjustment: str = "none",
    sigmoid_bias: float | None = None,
) -> Scores:
    """Compute all scores from collected outputs.

    Args:
        logits: (N, K), already corrected if `adjustment` says so.
        targets: true class ids, (N,).
        prior: training counts and class names. None: classes are named by id, there are neither shot groups nor
            training counts.
        split: name of the data, for the record.
        rule: which classes are many, medium and few; see `relatum.prior.ShotGroups`.
        bootstrap: resamples for the interval of top-1; 0 leaves it out.
        adjustment: words for the post-hoc correction that was applied to `logits`.
        sigmoid_bias: for a model trained on sigmoids, `sigmoid_bias` of its objective: calibration is then measured
            also with sigmoid(largest logit + bias) as confidence. None: with the softmax only.
    """
    outputs, labels = as_pair(logits, targets)
    k = outputs.shape[1]
    if prior is not None and prior.num_classes != k:
        raise DataError(
            f"logits of {k} classes cannot be scored with counts of {prior.num_classes}; "
            "give the ClassPrior of the model's training data."
        )
    confusion = metrics.confusion_matrix(metrics.predict_classes(outputs), labels, k)
    correct = metrics.top_k_correct(outputs, labels, 1)
    accuracies = metrics.class_accuracy(confusion)
    confidence = calibration.confidence(outputs)
    reliability = calibration.reliability(confidence, correct)
    names = [str(i) for i in range(k)] if prior is None else list(prior.names)
    return Scores(
        split=split,
        samples=len(labels),
        classes=k,
        top1=float(correct.mean()),
        top5=metrics.top_k_accuracy(outputs, labels, 5),
        balanced_accuracy=metrics.balanced_accuracy(confusion),
        macro_f1=metrics.macro_f1(confusion),
        nll=metrics.negative_log_likelihood(outputs, labels),
        ece=reliability.ece(),
        mce=reliability.mce(),
        rule="n/a" if prior is None else rule,
        groups=_groups(accuracies, prior, rule),
        per_class=_per_class(confusion, names, prior),
        worst_class=_worst(accuracies, names),
        interval=_interval(correct, bootstrap),
        reliability=reliability.to_dict(),
        confusion=confusion.tolist() if k <= LARGEST_CONFUSION else None,
        adjustment=adjustment,
        sigmoid=_sigmoid(outputs, correct, sigmoid_bias),
        group_reliability=_group_reliability(confidence, correct, labels, prior, rule),
    )


def _groups(accuracies: FloatArray, prior: ClassPrior | None, rule: str) -> dict[str, dict[str, Any]]:
    if prior is None:
        return {name: {"accuracy": None, "classes": 0} for name in GROUPS}
    shots = prior.shot_groups(rule)
    members = {name: shots.classes(name) for name in GROUPS}
    return {
        name: {"accuracy": metrics.group_accuracy(accuracies, ids), "classes": len(ids)}
        for name, ids in members.items()
    }


def _sigmoid(outputs: npt.NDArray[Any], correct: npt.NDArray[Any], bias: float | None) -> dict[str, Any] | None:
    if bias is None:
        return None
    table = calibration.reliability(calibration.sigmoid_confidence(outputs, bias), correct)
    return {"bias": float(bias), "ece": table.ece(), "mce": table.mce(), "reliability": table.to_dict()}


def _group_reliability(
    confidence: FloatArray, correct: npt.NDArray[Any], labels: IntArray, prior: ClassPrior | None, rule: str
) -> dict[str, dict[str, Any] | None]:
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(GROUPS)
    if prior is None:
        return found
    group = prior.shot_groups(rule).group[labels]
    for number, name in enumerate(GROUPS):
        inside = group == number
        if inside.any():
            table = calibration.reliability(confidence[inside], correct[inside])
            measured = {"ece": table.ece(), "mce": table.mce(), "count": table.samples}
            found[name] = {**measured, "reliability": table.to_dict()}
    return found


def _per_class(confusion: IntArray, names: list[str], prior: ClassPrior | None) -> list[dict[str, Any]]:
    counts = [None] * len(names) if prior is None else prior.counts.tolist()
    columns = zip(
        names,
        counts,
        confusion.sum(axis=1).tolist(),
        map(_defined, metrics.class_accuracy(confusion)),
        map(_defined, metrics.class_precision(confusion)),
        strict=True,
    )
    keys = ("name", "train_count", "support", "accuracy", "precision")
    return [dict(zip(keys, row, strict=True)) for row in columns]


def _worst(accuracies: FloatArray, names: list[str]) -> dict[str, Any] | None:
    worst = metrics.worst_class(accuracies)
    return None if worst is None else {"name": names[worst], "accuracy": float(accuracies[worst])}


def _interval(correct: ArrayLike, resamples: int) -> dict[str, float] | None:
    if resamples == 0:
        return None
    low, high = bootstrap_interval(correct, resamples=resamples, level=LEVEL)
    return {"low": low, "high": high, "level": LEVEL}


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
