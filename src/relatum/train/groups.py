"""Which parameter is trained at which share of the learning rate, and with which weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timm.models import group_parameters
from timm.optim import param_groups_layer_decay
from torch import nn

from relatum.config import TrainConfig
from relatum.errors import ConfigError
from relatum.models.find import find_classifier

Named = Iterable[tuple[str, nn.Parameter]]


def weight_decay_groups(
    named: Named, weight_decay: float, decay_all: bool, never: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Divide trainable parameters into decayed and not decayed.

    Args:
        named: parameters by name.
        weight_decay: of the decayed ones.
        decay_all: decay everything. Else biases and norms, whatever has one dimension, are left out, and
        never: parameters of these names (a model's positions and tokens).
    """
    trainable = [(name, p) for name, p in named if p.requires_grad]
    spared = set() if decay_all else {name for name, p in trainable if p.ndim <= 1} | set(never)
    decayed = [p for name, p in trainable if name not in spared]
    pairs = ((decayed, weight_decay), ([p for name, p in trainable if name in spared], 0.0))
    return [{"params": p, "weight_decay": decay, "lr_scale": 1.0} for p, decay in pairs if p]


def model_groups(model: nn.Module, config: TrainConfig, without: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """Optimizer groups of a model, each with `params`, `weight_decay` and `lr_scale`.

    What a model says should never be decayed (timm's `no_weight_decay()`: positions, class token) is left out of the
    decay unless `config.decay_all`. With `config.layer_decay` d below 1, layer l of L has the `lr_scale` d ** (L - l):
    the head has 1, the stem the least; timm knows the layers of its models.

    Args:
        model: the model, which may carry a relation.
        config: weight_decay, decay_all, layer_decay, and whether the optimizer is muon.
        without: parameters that have groups of their own, such as those of the relation.

    Raises:
        ConfigError: a layer decay for a model that does not tell its layers.
    """
    groups = _model_groups(model, config, {id(p) for p in without})
    return divide_for_muon(groups, model) if config.optimizer == "muon" else groups


def divide_for_muon(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Divide each group into what Muon trains, the matrices and convolutions inside the model, and what AdamW does.

    The latter, marked by timm's `use_fallback`, are vectors, positions and tokens, and the classifier: its rows are
    classes, and an orthogonal step would move the rare ones as far as the frequent ones.
    """
    outside = {id(p) for _, head in find_classifier(model) for p in head.parameters()}
    tokens = _never_decayed(model)
    outside |= {id(p) for name, p in model.named_parameters() if name in tokens or p.ndim < 2}
    divided = []
    for group in groups:
        for fallback in (False, True):
            parameters = [p for p in group["params"] if (id(p) in outside) == fallback]
            divided.append({**group, "params": parameters, "use_fallback": fallback})
    return [group for group in divided if group["params"]]


def _model_groups(model: nn.Module, config: TrainConfig, elsewhere: set[int]) -> list[dict[str, Any]]:
    host = [(name, p) for name, p in model.named_parameters() if id(p) not in elsewhere]
    if config.layer_decay == 1:
        return weight_decay_groups(host, config.weight_decay, config.decay_all, _never_decayed(model))
    _check_layers(model, host)
    groups = param_groups_layer_decay(
        model,
        weight_decay=config.weight_decay,
        no_weight_decay_list=() if config.decay_all else _never_decayed(model),
        weight_decay_exclude_1d=not config.decay_all,
        layer_decay=config.layer_decay,
    )
    # timm counts what it does not know, as a relation, to the head: the other layers are the same with and without it.
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in elsewhere]
    return [group for group in groups if group["params"]]


def _check_layers(model: nn.Module, host: Named) -> None:
    """Refuse a model whose parameters would all count as one layer: its layer decay would do nothing."""
    matcher = getattr(model, "group_matcher", None)
    if callable(matcher):
        layers = group_parameters(model, matcher(coarse=False), reverse=True)
        if len({layers[name] for name, _ in host if name in layers}) > 1:
            return
    raise ConfigError(
        f"train.layer_decay needs the order of the layers, which {type(model).__name__} does not tell (timm's "
        "group_matcher); set --train.layer-decay 1, or take a timm ViT, Swin or ResNet, or a small ViT."
    )


def _never_decayed(model: nn.Module) -> set[str]:
    names = getattr(model, "no_weight_decay", None)
    return set(names()) if callable(names) else set()
