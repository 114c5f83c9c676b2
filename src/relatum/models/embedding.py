"""A model without its classifier: images in, features out."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from relatum.errors import ModelError, suggest
from relatum.models.features import run_with_features
from relatum.models.mae.model import MaskedAutoencoder

_POOLS = ("default", "avg", "token")


class Embedding(nn.Module):
    """Wrap a model so that it answers with features; `relatum.evaluate.collect` then gathers them over a split.

    In evaluation mode they are the features of the plain model, whether or not a relation is attached.

    Args:
        model: a classifier, whose features are what enters its classifier (of several heads the first counts); or a
            model without one (`reset_classifier(0)`), whose output they are.
        pool: "default" takes that. For timm ViTs "avg" takes the mean of the patch tokens and "token" the class token,
            normalised by the model's last normalisation, before or after pooling, wherever the model has it.
    """

    def __init__(self, model: nn.Module, pool: str = "default") -> None:
        super().__init__()
        if pool not in _POOLS:
            raise ModelError(f"unknown pool '{pool}'; {suggest(pool, _POOLS)}")
        if isinstance(model, MaskedAutoencoder):
            raise ModelError("a masked autoencoder answers with patches; give its encoder: Embedding(model.encoder).")
        if pool != "default":
            _check_tokens(model, pool)
        self.model, self.pool = model, pool

    def forward(self, images: Any) -> Tensor:
        """Return features (N, C) of images (N, 3, H, W)."""
        model: Any = self.model
        if self.pool != "default":
            tokens: Tensor = model.forward_features(images)  # (N, prefix + L, C)
            pooled: Tensor = model.fc_norm(model.pool(tokens, pool_type=self.pool))
            return pooled
        if getattr(model, "num_classes", None) == 0:
            output: Tensor = model(images)
            return output
        return run_with_features(model, images)[1]


def _check_tokens(model: nn.Module, pool: str) -> None:
    """Raise ModelError unless `model` is a ViT whose tokens can be pooled that way."""
    if not isinstance(model, VisionTransformer):
        raise ModelError(f"{type(model).__name__} is no timm VisionTransformer with tokens to pool; use pool default.")
    if model.attn_pool is not None:
        raise ModelError(f"this {type(model).__name__} pools by attention; use pool default.")
    if pool == "token" and not model.has_class_token:
        raise ModelError(f"this {type(model).__name__} has no class token; use pool avg or default.")
