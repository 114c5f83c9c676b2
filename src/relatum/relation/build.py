"""From relation settings to a spec; a setting that the chosen relation has no use for is refused."""

from __future__ import annotations

from typing import Any, Literal

from relatum.config import RelationConfig
from relatum.errors import ConfigError
from relatum.processes import world
from relatum.relation.presence import Presence
from relatum.relation.specs import BatchFormer, BatchFormerV2, Spec

_V2_ONLY = ("at", "share", "tokens", "two_streams")
_V1_ONLY = ("shared_classifier",)


def build_spec(config: RelationConfig) -> Spec | None:
    """Return the spec of `config`, or None for plain training."""
    if config.name == "none":
        return None
    _refuse(config, _V2_ONLY if config.name == "batchformer" else _V1_ONLY)
    common: dict[str, Any] = {
        "layers": config.layers,
        "dropout": config.dropout,
        "hidden": config.hidden or None,
        "related_fraction": config.related_fraction,
        "gather": config.gather and world() > 1,  # alone, this process has all samples already
    }
    if config.variant != "auto":
        common["variant"] = config.variant
    if config.name == "batchformer":
        return BatchFormer(heads=config.heads or 4, shared_classifier=config.shared_classifier, **common)
    return BatchFormerV2(
        at=config.at or "last",
        heads=config.heads or None,
        share=config.share,
        tokens=config.tokens,
        two_streams=config.two_streams,
        **common,
    )


def stream_weights(config: RelationConfig) -> Literal["mean", "released"] | tuple[float, float]:
    """Return how the losses of the streams are weighted, as `ClassificationTask` takes it."""
    default = RelationConfig().related_weight
    single = not (config.shared_classifier and config.two_streams)
    if single and (config.streams, config.related_weight) != ("mean", default):
        raise ConfigError("relation.streams and related_weight weigh two streams, but the settings ask for one.")
    if config.streams == "released" and config.related_weight != default:
        raise ConfigError("relation.related_weight does nothing with relation.streams released; set streams to mean.")
    if config.streams == "released" or config.related_weight == default:
        return config.streams
    return (1 - config.related_weight, config.related_weight)


def presence(config: RelationConfig) -> Presence:
    """Return when the related stream takes part, as `ClassificationTask` takes it."""
    found = Presence(config.fade_start, config.fade_end)
    if found != Presence():
        if not (config.shared_classifier and config.two_streams):
            raise ConfigError("relation.fade_start and fade_end shift weight between two streams, but there is one.")
        if config.streams == "released":
            raise ConfigError("relation.streams released has fixed weights from start to end; set streams to mean.")
    return found


def _refuse(config: RelationConfig, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(config, name) != getattr(RelationConfig(), name):
            raise ConfigError(f"relation.{name} does nothing with relation.name {config.name}; leave it out.")
