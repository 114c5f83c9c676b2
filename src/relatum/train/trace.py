"""Watch a forward and backward pass for the first value that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from relatum.train.task import Task


class Trace:
    """While entered, hooks on every module and parameter of a task note where a value is first not finite.

    A module whose inputs are finite and whose output is not made it itself. An input that is not finite was made by
    the module around it, between two of its parts. Gradients are seen in the order of the backward pass.

    Args:
        task: what is run while this is entered.

    Attributes:
        first: "kind", "layer" and "tensor" of the first value that was not finite, or None.
        reached: (layer, parameter) in the order in which the backward pass came to them.
    """

    def __init__(self, task: Task) -> None:
        self.first: dict[str, Any] | None = None
        self.reached: list[tuple[str, str]] = []
        self._task = task
        self._names = {module: name or "task" for name, module in task.named_modules()}
        self._running: list[str] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Trace:
        for module, name in self._names.items():
            self._handles.append(module.register_forward_pre_hook(self._begin))
            self._handles.append(module.register_forward_hook(self._end))
            for own, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    self._handles.append(parameter.register_hook(partial(self._gradient, name, own)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        name = self._names[module]
        if self._running and not all_finite(inputs):
            self._note(self._forward_kind(self._running[-1]), self._running[-1], f"input of {name}")
        self._running.append(name)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self._running.pop()
        # Of what the task answers only the loss counts: a part that is logged may well be undefined.
        seen = output["loss"] if module is self._task else output
        if not all_finite(seen):
            self._note(self._forward_kind(name), name, "output")
        for tensor in tensors_in(seen):
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(partial(self._gradient, name, "output")))

    def _gradient(self, layer: str, tensor: str, gradient: Tensor) -> None:
        if tensor != "output":
            self.reached.append((layer, tensor))
        if not all_finite(gradient):
            self._note("backward", layer, tensor)

    def _forward_kind(self, layer: str) -> str:
        return "forward" if layer == "model" or layer.startswith("model.") else "loss"

    def _note(self, kind: str, layer: str, tensor: str) -> None:
        self.first = self.first or {"kind": kind, "layer": layer, "tensor": tensor}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from tensors_in(getattr(value, entry.name))


def all_finite(value: Any) -> bool:
    """Whether every number in every tensor of `value` is finite."""
    return all(bool(t.detach().isfinite().all()) for t in tensors_in(value) if t.is_floating_point() and t.numel())
