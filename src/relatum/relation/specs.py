"""Specs say which relation to attach and where; `attach` makes it so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchFormer:
    """Image-level relation: attention over the batch on the features that enter the classifier.

    In training the classifier receives [plain; related] features, (2N, C), and shares its weights between them;
    that is why the relation can be removed for testing.

    Args:
        heads: attention heads; must divide the feature width.
        layers: encoder layers.
        dropout: dropout inside the relation.
        hidden: feed-forward width; None means the feature width.
        at: "classifier" to find the classifier(s) of the model, or the name of a module whose input is related.
        shared_classifier: False is the paper's ablation: the related features replace the plain ones, (N, C).
        gather: relate the samples of all processes of `torch.distributed`, with exact gradients. Every process must
            have the same batch size.
    """

    heads: int = 4
    layers: int = 1
    dropout: float = 0.5
    hidden: int | None = None
    at: str = "classifier"
    shared_classifier: bool = True
    gather: bool = False
