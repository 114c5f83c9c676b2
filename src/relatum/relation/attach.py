"""The door of the room: attach(model, spec) -> Relation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from relatum.errors import ConfigError, ModelError
from relatum.models.find import named_module
from relatum.relation.attention import BatchAttention
from relatum.relation.batchnorm import keep_plain_statistics
from relatum.relation.hooks import Boundary, GiveBoth, RelateInput, RelateOutput, RelationHook, TakePlain
from relatum.relation.layout import Layout, count_class_tokens
from relatum.relation.relation import MODULE_NAME, Relation
from relatum.relation.sites import Site, find_sites
from relatum.relation.specs import BatchFormer, BatchFormerV2, Spec

# Per-image inputs of detectors. Position codes and reference points are made from them inside the model, so the streams
# have to begin at the door: doubled later, those side inputs would still have N rows.
_DETECTOR_INPUTS = ("pixel_values", "pixel_mask", "encoder_outputs", "inputs_embeds", "decoder_inputs_embeds", "labels")
_DETECTOR_MARK = "pixel_mask"


def attach(model: nn.Module, spec: Spec, *, num_classes: int | None = None) -> Relation:
    """Attach a relation to `model` in place; every check runs before any change.

    Args:
        model: any nn.Module: timm, torchvision, transformers or home-made.
        spec: what to attach, for example `BatchFormer()` or `BatchFormerV2(at="all")`.
        num_classes: helps to find the classifier of a home-made model; not needed where the model knows it.

    Returns:
        The handle: `relation.targets(y)` for the loss, `relation.detach()` to get the plain model back.
    """
    if not isinstance(spec, BatchFormer | BatchFormerV2):
        raise ConfigError(f"attach() takes a spec such as relatum.BatchFormer(), not {type(spec).__name__}.")
    if attached_relation(model) is not None:
        raise ModelError("this model has a relation already; detach() it first.")
    if hasattr(model, MODULE_NAME):
        raise ModelError(f"the model has an attribute '{MODULE_NAME}' of its own, the name under which we register.")
    sites = find_sites(model, spec, num_classes)
    layouts = [_layout(model, spec, site) for site in sites]
    _check_padding(spec, sites)
    doubled, prefix = _door(model, spec)
    return _insert(model, spec, sites, layouts, doubled, prefix)


class _Attentions(nn.ModuleList):
    """Our modules on the host. A Sequential host runs every module registered on it: there it must do nothing."""

    def forward(self, x: Any) -> Any:
        """Return the input."""
        return x


def attached_relation(model: nn.Module) -> Relation | None:
    """Return the relation on `model`, also on a deepcopy of an attached model; None if it is plain."""
    for module in model.modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if isinstance(hook, RelationHook):
                return hook.relation
    return None


def _insert(
    model: nn.Module,
    spec: Spec,
    sites: list[Site],
    layouts: list[Layout],
    doubled: tuple[str, ...],
    prefix: dict[str, nn.Module],
) -> Relation:
    modules = list(_attentions(model, spec, sites))
    model.add_module(MODULE_NAME, _Attentions(dict.fromkeys(modules)))  # a shared module is registered once
    # Streams begin at the door as soon as something runs on both before the first site.
    at_door = bool(set(doubled) - {"labels"})
    relation = Relation(model, spec, tuple(site.name for site in sites), at_door)
    boundary = Boundary(relation, _parameters(model), doubled)
    handles = [model.register_forward_pre_hook(boundary, with_kwargs=True)]
    for module in prefix.values():
        handles.append(module.register_forward_pre_hook(TakePlain(relation), with_kwargs=True))
        handles.append(module.register_forward_hook(GiveBoth(relation)))
    for number, (site, layout, attention) in enumerate(zip(sites, layouts, modules, strict=True)):
        if site.side == "input":
            handles.append(site.module.register_forward_pre_hook(RelateInput(relation, attention, layout, True)))
        else:
            first = number == 0 and not at_door
            hook = RelateOutput(relation, attention, layout, first, _parameters(site.module))
            handles.append(site.module.register_forward_hook(hook, with_kwargs=True))
    relation._handles = handles + keep_plain_statistics(relation, _on_both_streams(relation, sites, prefix))
    return relation


def _attentions(model: nn.Module, spec: Spec, sites: list[Site]) -> Iterator[BatchAttention]:
    """Yield the attention of each site, on its device and in its precision; the same one if they share it."""
    shared: BatchAttention | None = None
    for site in sites:
        if shared is None:
            options = (spec.hidden, spec.dropout, spec.layers, spec.variant)
            made = BatchAttention(site.width, site.heads, *options)
            reference = next((p for p in site.module.parameters() if p.is_floating_point()), torch.empty(0))
            made.to(device=reference.device, dtype=reference.dtype).train(model.training)
            shared = made if isinstance(spec, BatchFormerV2) and spec.share else None
        yield made


def _layout(model: nn.Module, spec: Spec, site: Site) -> Layout:
    if isinstance(spec, BatchFormer):
        return Layout(site.name, site.width)
    class_tokens = count_class_tokens(model) if spec.class_tokens is None else spec.class_tokens
    if spec.tokens == "class" and class_tokens == 0:
        raise ModelError(
            f"{type(model).__name__} has no class token that we know of; use tokens='all', or say how many it has with "
            "BatchFormerV2(class_tokens=...)."
        )
    first = {"auto": None, "first": True, "last": False}[spec.channels]
    convolutional = any(isinstance(part, nn.Conv2d) for part in site.module.modules())
    return Layout(site.name, site.width, first, spec.tokens, class_tokens, convolutional)


def _check_padding(spec: Spec, sites: list[Site]) -> None:
    """Refuse the name of a mask that a layer does not take: it would be ignored."""
    name = spec.padding if isinstance(spec, BatchFormerV2) else None
    for site in sites if name else ():
        known = inspect.signature(site.module.forward).parameters
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
        if str(name) not in known and not open_ended:
            raise ModelError(f"'{site.name}' takes no argument '{name}' for padding; it has {', '.join(known)}.")


def _door(model: nn.Module, spec: Spec) -> tuple[tuple[str, ...], dict[str, nn.Module]]:
    """Which inputs are doubled at the door, by name, and which modules run once nevertheless."""
    known = _parameters(model, by_name=True)
    wanted = spec.inputs if isinstance(spec, BatchFormerV2) else None
    if wanted is None:
        wanted = _DETECTOR_INPUTS if _DETECTOR_MARK in known and isinstance(spec, BatchFormerV2) else ("labels",)
        wanted = tuple(name for name in wanted if name in known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ModelError(f"{type(model).__name__}.forward has no argument '{unknown[0]}'; it has {', '.join(known)}.")
    names = spec.prefix if isinstance(spec, BatchFormerV2) else ()
    if not set(wanted) - {"labels"}:
        if names:
            raise ConfigError(
                f"prefix={names} does nothing here: the streams begin at the first site, and what comes before it runs "
                "once anyway. Leave prefix out, or name the per-sample inputs with BatchFormerV2(inputs=...)."
            )
        return wanted, {}
    return wanted, {n: named_module(model, n) for n in (_backbones(model) if names is None else names)}


def _backbones(model: nn.Module) -> tuple[str, ...]:
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] == "backbone"]
    return tuple(names[:1])


def _parameters(module: nn.Module, by_name: bool = False) -> tuple[str, ...]:
    """Names of the arguments of `module`: those that can be given by position, in order, or all with a name."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kinds = (*by_position, inspect.Parameter.KEYWORD_ONLY) if by_name else by_position
    parameters = inspect.signature(module.forward).parameters.values()
    return tuple(p.name for p in parameters if p.kind in kinds)


def _on_both_streams(relation: Relation, sites: list[Site], prefix: dict[str, nn.Module]) -> list[nn.Module]:
    """Modules that get plain and related rows together."""
    if sites[0].side == "input":
        return [part for site in sites for part in site.module.modules()]
    once = {part for module in prefix.values() for part in module.modules()}
    after = relation.model.modules() if relation.at_door else _modules_after(relation.model, sites[0].module)
    return [module for module in after if module not in once]


def _modules_after(model: nn.Module, site: nn.Module) -> Iterator[nn.Module]:
    """Modules registered after the site: for all hosts we know that is the order in which they run."""
    inside = set(site.modules())
    reached = False
    for module in model.modules():
        if module is site:
            reached = True
        elif reached and module not in inside:
            yield module
