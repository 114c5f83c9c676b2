"""From what a spec says (`at`) to the modules of a host: where features are related, and how wide they are there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from relatum.errors import ConfigError, ModelError
from relatum.models.blocks import find_blocks
from relatum.models.find import find_classifier, named_module
from relatum.relation.attention import check_heads
from relatum.relation.specs import BatchFormer, BatchFormerV2, Spec

_RANGE = re.compile(r"(?<!\d)(\d{1,6})-(\d{1,6})(?!\d)", re.ASCII)
_MOST_BLOCKS = 10_000
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HEADS_WITHOUT_ATTENTION = 4


@dataclass(frozen=True)
class Site:
    """One place where a relation acts.

    Args:
        name: dotted name of the module.
        module: the module itself.
        side: whether its input (a classifier) or its output (a layer) is related.
        width: feature width C there.
        heads: attention heads there.
    """

    name: str
    module: nn.Module
    side: Literal["input", "output"]
    width: int
    heads: int


def find_sites(model: nn.Module, spec: Spec, num_classes: int | None = None) -> list[Site]:
    """Return the sites of `spec` on `model`, checked, in the order in which they run."""
    if isinstance(spec, BatchFormer):
        found = find_classifier(model, None if spec.at == "classifier" else spec.at, num_classes)
        sites = [Site(name, m, "input", _input_width(name, m), spec.heads) for name, m in found]
    else:
        sites = [_layer_site(model, spec, name, module) for name, module in _layers(model, spec.at)]
        if spec.share and len({site.width for site in sites}) > 1:
            listed = ", ".join(f"{site.name} ({site.width})" for site in sites)
            raise ConfigError(f"share=True needs one feature width at all sites, not {listed}; use share=False.")
    for site in sites:
        check_heads(site.width, site.heads)
    return sites


def _layers(model: nn.Module, at: str | tuple[str, ...]) -> list[tuple[str, nn.Module]]:
    found: dict[str, nn.Module] = {}
    for word in (at,) if isinstance(at, str) else at:
        for name, module in _expand(model, word):
            if name in found:
                raise ConfigError(f"BatchFormerV2(at=...) names '{name}' twice.")
            found[name] = module
    return list(found.items())


def _expand(model: nn.Module, word: str) -> list[tuple[str, nn.Module]]:
    if word in ("all", "last"):
        blocks = find_blocks(model)
        if not blocks:
            raise ModelError(f"{type(model).__name__} repeats no blocks; name layers, e.g. at=('layer3', 'layer4').")
        return blocks if word == "all" else blocks[-1:]
    span = _RANGE.search(word)
    if span is None:
        return [(word, _named(model, word))]
    first, last = int(span[1]), int(span[2])
    if first > last:
        raise ConfigError(f"'{word}' runs backwards; write it as {span[2]}-{span[1]}.")
    if last - first >= _MOST_BLOCKS:
        raise ConfigError(f"'{word}' names {last - first + 1:,} layers; no model has so many.")
    names = [f"{word[: span.start()]}{k}{word[span.end() :]}" for k in range(first, last + 1)]
    return [(name, _named(model, name)) for name in names]


def _named(model: nn.Module, name: str) -> nn.Module:
    try:
        return named_module(model, name)
    except ModelError as error:
        blocks = [block for block, _ in find_blocks(model)]
        hint = f" Its blocks: {blocks[0]} to {blocks[-1]}." if blocks else ""
        raise ModelError(f"{error}{hint}") from None


def _layer_site(model: nn.Module, spec: BatchFormerV2, name: str, module: nn.Module) -> Site:
    _check_batch_dim(spec, name, module)
    width = spec.width or _output_width(name, module)
    heads = spec.heads if spec.heads is not None else _host_heads(model, module, width)
    return Site(name, module, "output", width, heads)


def _check_batch_dim(spec: BatchFormerV2, name: str, module: nn.Module) -> None:
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        right = 0 if module.self_attn.batch_first else 1
        if spec.batch_dim != right:
            raise ModelError(
                f"the samples of '{name}' are in dimension {right}; with batch_dim={spec.batch_dim} positions instead "
                f"of samples would be related. Set BatchFormerV2(batch_dim={right})."
            )


def _host_heads(model: nn.Module, module: nn.Module, width: int) -> int:
    for holder in (*module.modules(), getattr(model, "config", None)):
        for key in ("num_heads", "num_attention_heads"):
            heads: Any = getattr(holder, key, None)
            if isinstance(heads, int) and heads > 0:
                return heads
    return next(heads for heads in range(_HEADS_WITHOUT_ATTENTION, 0, -1) if width % heads == 0)


def _input_width(name: str, module: nn.Module) -> int:
    """The width of the features that enter `module`: its own in_features, or that of its first layer that has one."""
    for part in module.modules():
        width = getattr(part, "in_features", None)
        if isinstance(width, int):
            return width
    raise ModelError(f"cannot tell the feature width that enters '{name}': it has no Linear layer. Name one with at=.")


def _output_width(name: str, module: nn.Module) -> int:
    """The width of what leaves `module`: that of its last layer that has one. A wrong guess is noticed when it runs."""
    width: int | None = None
    for part in module.modules():
        if isinstance(part, nn.Linear):
            width = part.out_features
        elif isinstance(part, _CONVOLUTIONS):
            width = part.out_channels
        elif isinstance(part, nn.LayerNorm):
            width = part.normalized_shape[-1]
    if width is None:
        raise ModelError(f"cannot tell the feature width that leaves '{name}'; give it with BatchFormerV2(width=...).")
    return width
