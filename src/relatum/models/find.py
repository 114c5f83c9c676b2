"""Where the classifier of a foreign model is."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from torch import nn

from relatum.errors import ModelError


def find_classifier(
    model: nn.Module, name: str | None = None, num_classes: int | None = None
) -> list[tuple[str, nn.Module]]:
    """Find the layer, or layers, that turn features into logits.

    Tried in this order: the given `name`; the model's `get_classifier()` (timm; distilled models return two heads);
    the last linear layer that is as wide as the number of classes, which is `num_classes`, else the model's
    `num_classes`, else its `config.num_labels`; the last linear layer, if nobody knows the number of classes.

    Args:
        model: any model.
        name: dotted name of the classifier, where the search is not wanted or fails.
        num_classes: K, for models that do not tell.

    Returns:
        (dotted name, module) of each classifier.

    Raises:
        ModelError: no classifier was found; the message lists what could be named.
    """
    if name is not None:
        return [(name, named_module(model, name))]
    return _own_classifiers(model) or [_last_linear(model, num_classes)]


def named_module(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that dotted name; an unknown name is an error that lists the nearest real ones."""
    modules = dict(model.named_modules())
    if name in modules:
        return modules[name]
    near = difflib.get_close_matches(name, [m for m in modules if m], n=3, cutoff=0.4)
    hint = f"nearest names: {', '.join(near)}." if near else f"linear layers: {_describe_linears(model)}."
    raise ModelError(f"{type(model).__name__} has no module '{name}'; {hint}")


def _own_classifiers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    ask = getattr(model, "get_classifier", None)
    answer: Any = ask() if callable(ask) else None
    heads = answer if isinstance(answer, (tuple, list)) else [answer]
    heads = [head for head in heads if isinstance(head, nn.Module)]
    if any(isinstance(head, nn.Identity) for head in heads):
        raise ModelError(
            f"{type(model).__name__} has no classifier (get_classifier() returns Identity); "
            "build it with num_classes, or call its reset_classifier(num_classes)."
        )
    names = {id(module): name for name, module in model.named_modules()}
    # A head outside the module tree cannot be hooked or replaced by name: leave it to the search for linear layers.
    return [(names[id(head)], head) for head in heads if id(head) in names]


def _last_linear(model: nn.Module, num_classes: int | None) -> tuple[str, nn.Module]:
    linears = _linears(model)
    width = num_classes if num_classes is not None else _known_classes(model)
    fitting = [(name, layer) for name, layer in linears if width is None or layer.out_features == width]
    if fitting:
        return fitting[-1]
    sought = "no linear layer" if width is None else f"no linear layer with {width} outputs"
    raise ModelError(
        f"no classifier found in {type(model).__name__}: it has no get_classifier() and {sought}. "
        f"Name the classifier; linear layers: {_describe_linears(model)}."
    )


def _linears(model: nn.Module) -> list[tuple[str, Any]]:
    # A cosine classifier is no nn.Linear but has the same three attributes; every class of that kind is welcome.
    return [(name, layer) for name, layer in plain_modules(model) if _is_linear(layer)]


def plain_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (dotted name, module) as `named_modules`, without an attached relation: the plain model lacks it."""
    if type(module).__module__.startswith("relatum.relation"):
        return
    yield prefix, module
    for name, child in module.named_children():
        yield from plain_modules(child, f"{prefix}.{name}" if prefix else name)


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Linear):
        return True
    widths = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    weight = getattr(module, "weight", None)
    return all(isinstance(w, int) for w in widths) and isinstance(weight, nn.Parameter) and weight.ndim == 2


def _known_classes(model: nn.Module) -> int | None:
    for holder, key in ((model, "num_classes"), (getattr(model, "config", None), "num_labels")):
        value = getattr(holder, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _describe_linears(model: nn.Module) -> str:
    layers = [
        f"{name or '(the model itself)'} ({layer.in_features} -> {layer.out_features})"
        for name, layer in _linears(model)
    ]
    shown = layers[-8:]
    return ("… " if len(layers) > len(shown) else "") + (", ".join(shown) or "none")
