"""Run a step again to find the layer where a value was first not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from relatum.batch import Batch
from relatum.train.nonfinite import broken_weight
from relatum.train.task import Task
from relatum.train.trace import Trace, all_finite


def find_first(task: Task, group: list[Batch], again: Callable[[], Any]) -> dict[str, Any]:
    """Return where a value is first not finite when a step is run again, as "kind", "layer" and "tensor".

    Kinds: "weights" (the step before broke them), "input" (of the batch), "forward" (in the model), "loss", "backward",
    "not repeated", when the same step is finite now, and "unknown", when it cannot be run again.

    Args:
        task: the task, with buffers and random numbers as before the step.
        group: the micro-batches of the step.
        again: computes the gradients of the step. It always runs to its end: where the processes of a run exchange
            values in a pass, none may leave it early.
    """
    known = _broken_weights(task) or _broken_input(group)
    task.zero_grad(set_to_none=True)  # also what no optimizer holds, and what the failing pass left there
    try:
        with Trace(task) as trace:
            again()
    except Exception as error:  # whatever it is, it must not hide what it was to explain
        return known or {"kind": "unknown", "error": f"{type(error).__name__}: {error}"}
    return known or trace.first or _large_gradient(task, trace) or {"kind": "not repeated"}


def _broken_weights(task: Task) -> dict[str, Any] | None:
    name = broken_weight(task)
    return None if name is None else _place("weights", *_owner(name))


def _broken_input(group: list[Batch]) -> dict[str, Any] | None:
    for number, batch in enumerate(group):
        for name in ("inputs", "targets"):
            rows = _broken_rows(getattr(batch, name))
            if rows:
                return {**_place("input", name), "micro_batch": number, "samples": batch.index[rows].tolist()}
    return None


def _broken_rows(values: Tensor) -> list[int]:
    return [row for row, value in enumerate(values) if not all_finite(value)]


def _large_gradient(task: Task, trace: Trace) -> dict[str, Any] | None:
    """Gradients that were finite one by one: their sum over micro-batches, or their norm, is not."""
    gradients = {_owner(n): p.grad for n, p in task.named_parameters() if p.grad is not None}
    for place in dict.fromkeys(trace.reached):
        if place in gradients and not all_finite(gradients[place]):
            return _place("backward", *place)
    sizes = {place: float(gradient.abs().max()) for place, gradient in gradients.items() if gradient.numel()}
    squares = sum((gradient.float().square().sum() for gradient in gradients.values()), torch.zeros(()))
    if not sizes or all_finite(squares):
        return None
    return _place("backward", *max(sizes, key=lambda place: sizes[place]))


def _place(kind: str, layer: str, tensor: str = "") -> dict[str, Any]:
    return {"kind": kind, "layer": layer, "tensor": tensor} if tensor else {"kind": kind, "layer": layer}


def _owner(name: str) -> tuple[str, str]:
    """Divide the name of a parameter into layer and tensor."""
    layer, _, tensor = name.rpartition(".")
    return layer or "task", tensor
