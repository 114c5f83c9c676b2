"""A model without its classifier: images in, features out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.features import run_with_features


class Embedding(nn.Module):
    """Wrap a model so that it answers with features; `relatum.evaluate.collect` then gathers them over a split.

    Args:
        model: a classifier, whose features are what enters its classifier; or a timm encoder without one
            (`reset_classifier(0)`), whose output they are.
        pool: "default" takes that. "avg" takes the mean of the patch tokens after the last normalisation (timm ViTs),
            "token" the class token.
    """

    def __init__(self, model: nn.Module, pool: str = "default") -> None:
        super().__init__()
        if pool not in ("default", "avg", "token"):
            raise ModelError(f"unknown pool '{pool}'; choose default, avg or token.")
        if pool != "default" and not hasattr(model, "forward_features"):
            raise ModelError(f"{type(model).__name__} has no tokens to pool; use pool default.")
        self.model, self.pool = model, pool

    def forward(self, images: Any) -> Tensor:
        """Return features (N, C) of images (N, 3, H, W)."""
        model: Any = self.model
        if self.pool != "default":
            tokens: Tensor = model.forward_features(images)  # (N, prefix + L, C)
            return tokens[:, model.num_prefix_tokens :].mean(dim=1) if self.pool == "avg" else tokens[:, 0]
        if getattr(model, "num_classes", None) == 0:
            output: Tensor = model(images)
            return output
        return run_with_features(model, images)[1]
