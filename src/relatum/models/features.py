"""The features that a classifier gets, for objectives that look at them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.find import find_classifier


def run_with_features(model: nn.Module, inputs: Any) -> tuple[Any, Tensor]:
    """Run `model` and return its output with what entered its classifier in that pass.

    The hook that looks lives for this pass only. It comes after those of a relation: it sees the rows of all streams.

    Args:
        model: a classifier; of several heads the first counts.
        inputs: what the model takes.

    Returns:
        The output, and features (N, C), one row for each row of logits.
    """
    seen: list[Tensor] = []
    classifier = find_classifier(model)[0][1]
    handle = classifier.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        output = model(inputs)
    finally:
        handle.remove()
    if not seen:
        raise ModelError(f"{type(model).__name__} did not call its classifier, so there are no features to look at.")
    return output, seen[-1]
