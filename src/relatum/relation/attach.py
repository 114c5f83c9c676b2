"""The door of the room: attach(model, spec) -> Relation."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from relatum.errors import ConfigError, ModelError
from relatum.models.find import find_classifier
from relatum.relation.attention import BatchAttention, check_heads
from relatum.relation.hooks import RelateInput, RelationHook
from relatum.relation.relation import MODULE_NAME, Relation
from relatum.relation.specs import BatchFormer


def attach(model: nn.Module, spec: BatchFormer, *, num_classes: int | None = None) -> Relation:
    """Attach a relation to `model` in place; every check runs before any change.

    Args:
        model: any nn.Module that classifies images: timm, torchvision, transformers or home-made.
        spec: what to attach, for example `BatchFormer()`.
        num_classes: helps to find the classifier of a home-made model; not needed where the model knows it.

    Returns:
        The handle: `relation.targets(y)` for the loss, `relation.detach()` to get the plain model back.
    """
    if not isinstance(spec, BatchFormer):
        raise ConfigError(f"attach() takes a spec such as relatum.BatchFormer(), not {type(spec).__name__}.")
    if attached_relation(model) is not None:
        raise ModelError("this model has a relation already; detach() it first.")
    if hasattr(model, MODULE_NAME):
        raise ModelError(f"the model has an attribute '{MODULE_NAME}' of its own, the name under which we register.")
    found = find_classifier(model, None if spec.at == "classifier" else spec.at, num_classes)
    widths = [_input_width(name, module) for name, module in found]
    for width in widths:
        check_heads(width, spec.heads)
    _warn_about_batchnorm(found)
    return _insert(model, spec, found, widths)


class _Attentions(nn.ModuleList):
    """Our modules on the host. A Sequential host runs every module registered on it: there it must do nothing."""

    def forward(self, x: Any) -> Any:
        """Return the input."""
        return x


def attached_relation(model: nn.Module) -> Relation | None:
    """Return the relation on `model`, also on a deepcopy of an attached model; None if it is plain."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, RelationHook):
                return hook.relation
    return None


def _insert(model: nn.Module, spec: BatchFormer, found: list[tuple[str, nn.Module]], widths: list[int]) -> Relation:
    modules = [BatchAttention(w, spec.heads, spec.hidden, spec.dropout, spec.layers) for w in widths]
    for (_, site), attention in zip(found, modules, strict=True):
        reference = next((p for p in site.parameters() if p.is_floating_point()), torch.empty(0))
        attention.to(device=reference.device, dtype=reference.dtype).train(model.training)
    model.add_module(MODULE_NAME, _Attentions(modules))
    relation = Relation(model, spec, tuple(name for name, _ in found))
    for (_, site), attention in zip(found, modules, strict=True):
        relation._handles.append(site.register_forward_pre_hook(RelateInput(relation, attention)))
    return relation


def _input_width(name: str, module: nn.Module) -> int:
    """The width of the features that enter `module`: its own in_features, or that of its first layer that has one."""
    for part in module.modules():
        width = getattr(part, "in_features", None)
        if isinstance(width, int):
            return width
    raise ModelError(f"cannot tell the feature width that enters '{name}': it has no Linear layer. Name one with at=.")


def _warn_about_batchnorm(found: list[tuple[str, nn.Module]]) -> None:
    for name, module in found:
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            warnings.warn(
                f"'{name}' holds a BatchNorm, which in training will see plain and related features together; its "
                "running statistics then fit neither alone. Name the last Linear with BatchFormer(at=...).",
                stacklevel=3,
            )
