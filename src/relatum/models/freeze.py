"""Train the classifier only."""

from __future__ import annotations

from torch import nn

from relatum.models.find import find_classifier


def freeze_backbone(model: nn.Module) -> list[nn.Module]:
    """Stop the training of everything but the classifier, in place.

    Returns:
        The frozen modules. Keep them in evaluation mode while training, or their BatchNorm statistics would move on.
    """
    heads = {id(part) for _, head in find_classifier(model) for part in head.modules()}
    kept = {id(p) for module in model.modules() if id(module) in heads for p in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in kept)
    return [m for m in model.modules() if not any(p.requires_grad for p in m.parameters()) and id(m) not in heads]
