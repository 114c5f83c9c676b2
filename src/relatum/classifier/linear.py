"""The classifier of a model: found, copied, put back."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.find import find_classifier


def linear_classifier(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return dotted name and module of the one linear layer that turns features into logits, or say what is wrong."""
    found = find_classifier(model)
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise ModelError(
            f"{type(model).__name__} has {len(found)} classifiers ({names}); these tools fit a single linear one. "
            "Train a model without a distillation head."
        )
    name, layer = found[0]
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"the classifier '{name}' of {type(model).__name__} is a {type(layer).__name__}; these tools need an "
            "nn.Linear. Train with --model.head linear; logit adjustment of any model: relatum evaluate --adjust-tau 1."
        )
    return name, layer


def linear_from(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with copies of `weight` (K, C) and `bias` (K,), which asks for no gradients."""
    classes, width = weight.shape
    layer = nn.utils.skip_init(nn.Linear, width, classes, bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def plain_copy(head: nn.Module) -> nn.Linear:
    """Return a float32 copy of a linear head on the CPU."""
    if not isinstance(head, nn.Linear):
        raise ModelError(
            f"{type(head).__name__} cannot be tuned further; give the nn.Linear that the model was trained with, "
            "for example linear_classifier(model)[1]."
        )
    bias = None if head.bias is None else head.bias.detach().float().cpu()
    return linear_from(head.weight.detach().float().cpu(), bias)


def fold(model: nn.Module, head: nn.Module) -> nn.Module:
    """Return a copy of `model` whose classifier has the weights of `head`: the same plain model, to be shipped as ever.

    Args:
        model: the model whose features `head` was fitted on; not changed.
        head: what a tool returned.

    Raises:
        ModelError: the head is not a linear layer of the same shape (DisAlign), so the model cannot stay plain.
    """
    name, old = linear_classifier(model)
    if not isinstance(head, nn.Linear):
        raise ModelError(
            f"{type(head).__name__} cannot be folded into the linear layer '{name}': its gate depends on the image. "
            f"Take crt or lws, or keep the head: model.set_submodule('{name}', head)."
        )
    if head.weight.shape != old.weight.shape or (head.bias is None) != (old.bias is None):
        raise ModelError(f"{head} does not fit the classifier '{name}' of the model, {old}; tune a copy of that one.")
    changed = copy.deepcopy(model)
    _, new = linear_classifier(changed)
    with torch.no_grad():
        new.weight.copy_(head.weight)
        if head.bias is not None:
            new.bias.copy_(head.bias)
    return changed
