"""Specs say which relation to attach and where; `attach` makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relatum.errors import ConfigError
from relatum.relation.attention import Variant


@dataclass(frozen=True)
class BatchFormer:
    """Image-level relation: attention over the batch on the features that enter the classifier.

    In training the classifier receives [plain; related] features, (2N, C), and shares its weights between them;
    that is why the relation can be removed for testing.

    Args:
        heads: attention heads; must divide the feature width.
        layers: encoder layers.
        dropout: dropout inside the relation.
        hidden: feed-forward width; None means the feature width (paper), or no feed-forward part (stable).
        at: "classifier" to find the classifier(s) of the model, or the name of a module whose input is related.
        shared_classifier: False is the paper's ablation: the related features replace the plain ones, (N, C).
        variant: "paper", or the "stable" layer.
        related_fraction: share of the batch, drawn anew at each pass, that forms the related stream; it attends to
            the whole batch.
        gather: relate the samples of all processes of `torch.distributed`, with exact gradients. The processes may have
            different numbers of samples.
    """

    heads: int = 4
    layers: int = 1
    dropout: float = 0.5
    hidden: int | None = None
    at: str = "classifier"
    shared_classifier: bool = True
    variant: Variant = "paper"
    related_fraction: float = 1.0
    gather: bool = False

    def __post_init__(self) -> None:
        check_fraction(self.related_fraction, self.keeps_plain)

    @property
    def keeps_plain(self) -> bool:
        """Whether the plain stream stays beside the related one."""
        return self.shared_classifier


@dataclass(frozen=True)
class BatchFormerV2:
    """Token- or pixel-level relation: attention over the batch after chosen layers, in two streams.

    The first site makes two streams, [plain; related], and everything after it runs on both with shared weights;
    later sites change the related stream only. What comes before the first site runs once.

    Args:
        at: layers whose output is related, in the order in which they run: names ("blocks.7"), ranges
            ("blocks.3-6", both ends included), "all" blocks or the "last" one.
        heads: attention heads; None takes as many as the blocks of the model have (4 if they have none).
        share: one module for all sites instead of one each.
        layers: encoder layers in each module.
        dropout: dropout inside the relation.
        hidden: feed-forward width; None means the feature width (paper), or no feed-forward part (stable).
        variant: "stable" (default), or "paper", the layer as published.
        tokens: relate all tokens, the class token(s) only, or the patches only.
        two_streams: False is the paper's ablation: the related features replace the plain ones at every site.
        related_fraction: share of the batch, drawn anew at each pass, that forms the related stream; it attends to
            the whole batch. The extra cost falls in proportion.
        gather: relate the samples of all processes of `torch.distributed`, with exact gradients. The processes may have
            different numbers of samples, but need inputs of the same size.
        width: feature width at the sites; None reads it from the layers.
        channels: where the features are in (N, C, H, W) or (N, H, W, C); "auto" looks for the width.
        class_tokens: number of class tokens; None asks the model.
        batch_dim: dimension of the samples in the output of the layers; 1 for sequence-first encoders.
        padding: name of an argument of the layers that marks padded positions, for example "src_key_padding_mask"
            (True is padding) or "attention_mask" (True, 1 or 0.0 is content); None uses no mask, as the paper.
        inputs: inputs of the model, by argument name, that are doubled at its door. None: `labels` if the model takes
            them; for detectors (models that take `pixel_mask`) all per-image inputs, and the streams then begin at the
            door.
        prefix: modules that run once although the streams began at the door; None: the backbone.
    """

    at: str | tuple[str, ...] = "last"
    heads: int | None = None
    share: bool = False
    layers: int = 1
    dropout: float = 0.5
    hidden: int | None = None
    variant: Variant = "stable"
    tokens: Literal["all", "class", "patch"] = "all"
    two_streams: bool = True
    related_fraction: float = 1.0
    gather: bool = False
    width: int | None = None
    channels: Literal["auto", "first", "last"] = "auto"
    class_tokens: int | None = None
    batch_dim: int = 0
    padding: str | None = None
    inputs: tuple[str, ...] | None = None
    prefix: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # A list is what people write; the spec stays hashable and equal to the one written with a tuple.
        object.__setattr__(self, "at", self.at if isinstance(self.at, str) else tuple(self.at))
        if not self.at:
            raise ConfigError('BatchFormerV2 needs a place: at="last", at="all", or names such as at="blocks.7".')
        check_fraction(self.related_fraction, self.keeps_plain)

    @property
    def keeps_plain(self) -> bool:
        """Whether the plain stream stays beside the related one."""
        return self.two_streams


Spec = BatchFormer | BatchFormerV2


def check_fraction(fraction: float, keeps_plain: bool) -> None:
    """Raise a ConfigError for a related fraction that makes no sense."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"related_fraction is {fraction}; it must be above 0 and at most 1 (all samples).")
    if fraction < 1 and not keeps_plain:
        raise ConfigError("related_fraction below 1 needs the plain stream: with a single stream all samples relate.")
