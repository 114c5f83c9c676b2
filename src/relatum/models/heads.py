"""Classifiers that can take the place of a model's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relatum.errors import ModelError, suggest
from relatum.models.experts import ExpertLinear
from relatum.models.find import find_classifier

HEADS = ("linear", "cosine")


def cosine_logits(features: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return scale × cosine similarity of each feature to each class row.

    Args:
        features: (..., C); a row of zeros has similarity 0 to everything.
        weight: (K, C), one row per class.
        scale: factor of the cosine; without one the softmax over K classes could never become sharp.

    Returns:
        logits (..., K), within [-scale, scale].
    """
    return scale * F.linear(F.normalize(features, dim=-1), F.normalize(weight, dim=-1))


class CosineClassifier(nn.Module):
    """Classifier by direction alone: scale × cos(features, class row), without a bias.

    Norms of features and of class rows, which grow with class frequency, have no say in the decision.

    Args:
        in_features: C, the feature width.
        out_features: K, the number of classes.
        scale: factor of the cosine.
    """

    def __init__(self, in_features: int, out_features: int, scale: float = 30.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ModelError(f"the scale of a cosine classifier must be positive, not {scale}; 30 is usual.")
        self.in_features, self.out_features, self.scale = in_features, out_features, scale
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the class rows uniformly from the unit sphere."""
        nn.init.normal_(self.weight)
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (..., K) of features (..., C)."""
        return cosine_logits(features, self.weight, self.scale)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, scale={self.scale}"


def build_head(head: str, in_features: int, num_classes: int, scale: float = 30.0) -> nn.Module:
    """Build the classifier named `head` ("linear" or "cosine"): (N, in_features) -> (N, num_classes)."""
    if head not in HEADS:
        raise ModelError(f"unknown head '{head}'; {suggest(head, HEADS)}")
    if head == "cosine":
        return CosineClassifier(in_features, num_classes, scale)
    return nn.Linear(in_features, num_classes)


def replace_classifier(model: nn.Module, head: str, num_classes: int, scale: float = 30.0) -> nn.Module:
    """Give `model` a fresh classifier of the kind `head` for `num_classes` classes, in place.

    A model with several classifiers (distilled ones have two) gets as many new ones.

    Args:
        model: any model whose classifier `find_classifier` finds and knows the input width of.
        head: "linear" or "cosine".
        num_classes: K of the new classifier.
        scale: scale of the cosine classifier; a linear one has none.

    Returns:
        The same model.
    """
    found = find_classifier(model)
    for name, old in found:
        if not name or not isinstance(getattr(old, "in_features", None), int):
            where = f"'{name}' ({type(old).__name__})" if name else "the whole model"
            raise ModelError(f"cannot replace the classifier {where}: it must be a Linear layer inside the model.")
        if isinstance(old, ExpertLinear):
            raise ModelError(f"the classifier '{name}' asks experts one by one, which a {head} one cannot; keep it.")
    for name, old in found:
        like = next(old.parameters())
        new = build_head(head, old.in_features, num_classes, scale)  # type: ignore[arg-type]
        model.set_submodule(name, new.to(device=like.device, dtype=like.dtype).train(old.training))
    if isinstance(getattr(model, "num_classes", None), int):
        model.num_classes = num_classes  # type: ignore[assignment]
    return model
