"""Models by name: the small CIFAR networks, ResNet-10, small ViTs, and everything timm has."""

from __future__ import annotations

import difflib
import math
import re
from typing import Any

import timm
from timm.layers import DropPath
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from relatum.errors import ModelError, suggest
from relatum.models.cifar_resnet import CIFAR_DEPTHS, CifarResNet
from relatum.models.fast_net import FAST_NETS, FastNet
from relatum.models.find import find_classifier
from relatum.models.heads import HEADS, replace_classifier
from relatum.models.small_vit import SMALL_VITS, small_vit
from relatum.models.weights import load_weights

__all__ = ["OWN_MODELS", "create_model", "find_classifier"]

POOLS = ("default", "avg", "token")
HEAD_BIASES = ("model", "log(C-1)")

OWN_MODELS = (*(f"resnet{depth}-cifar" for depth in CIFAR_DEPTHS), "resnet10", *FAST_NETS, *SMALL_VITS)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")

# Arguments of timm by which a model comes with weights, or with settings that say where to get them.
_LOADING = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"}

# What a model may lack, by timm's name of the option: our setting, and what it does.
_OPTIONAL = {
    "drop_rate": ("drop_rate", "dropout before the classifier"),
    "drop_path_rate": ("drop_path", "stochastic depth"),
}


def create_model(
    name: str,
    num_classes: int,
    *,
    head: str = "linear",
    scale: float = 30.0,
    weights: str = "",
    encoder: str = "",
    pool: str = "default",
    head_std: float = -1.0,
    head_bias: str = "model",
    drop_rate: float = 0.0,
    drop_path: float = 0.0,
    **kwargs: Any,
) -> nn.Module:
    """Build a model; its random weights come from torch's generator (`torch.manual_seed`).

    Args:
        name: resnet20-cifar, resnet32-cifar, resnet44-cifar, resnet56-cifar, resnet10, fastnet-s, -m, -l or
            -experts, a small ViT (vit-nano-p4, see `small_vit`), or any timm model name.
        num_classes: K.
        head: classifier, "linear" or "cosine".
        scale: scale of the cosine classifier.
        weights: local file to start from (see `load_weights`); nothing is ever downloaded.
        encoder: local file with a pretrained encoder to start a ViT from (see `load_encoder`); the classifier stays
            as it was drawn.
        pool: what a ViT hands to its classifier: "token", the class token; "avg", the mean of the patch tokens, which
            is normalised after pooling instead of before; "default", what the model has.
        head_std: standard deviation of a linear classifier's first weights (normal, cut at -2 and 2; bias 0); -1
            keeps the model's own. Fine-tuning of masked autoencoders has 2e-5.
        head_bias: start of a linear classifier's bias: "model" keeps it; "log(C-1)" is -log(K - 1) for every class,
            where a sigmoid says 1/K.
        drop_rate: dropout before the classifier.
        drop_path: stochastic depth: the rate at the last block, rising linearly from 0 at the first.
        **kwargs: passed on to the model, for example `patch_size=4`. `img_size` may always be given: networks without
            a fixed input size take images of any size and are built without it.

    Returns:
        A model (N, 3, H, W) -> (N, K) with timm's interface.

    Raises:
        ModelError: unknown name, head or option, options that exclude each other, or weights that do not fit.
    """
    for what, value, known in (("head", head, HEADS), ("pool", pool, POOLS), ("head_bias", head_bias, HEAD_BIASES)):
        if value not in known:
            raise ModelError(f"unknown {what} '{value}'; {suggest(value, known)}")
    if num_classes < 1:
        raise ModelError(f"a classifier needs at least one class, not {num_classes}; set num_classes.")
    if weights and encoder:
        raise ModelError("weights and encoder both say where the model starts; give one of them.")
    _check_head_start(head, head_std, head_bias, num_classes)
    if drop_rate:
        kwargs["drop_rate"] = drop_rate
    if drop_path:
        kwargs["drop_path_rate"] = drop_path
    model = _build_pooled(name, num_classes, pool, kwargs)
    # Some timm models take the rate and never use it.
    if drop_path and not any(isinstance(part, DropPath) and part.drop_prob for part in model.modules()):
        raise ModelError(_lacks(name, "drop_path_rate"))
    if head != "linear":
        replace_classifier(model, head, num_classes, scale)
    _start_heads(model, head_std, head_bias)
    if weights:
        load_weights(model, weights)
    if encoder:
        from relatum.models.encoder import load_encoder  # it needs models.mae, which needs create_model

        load_encoder(model, encoder)
    return model


def _build_pooled(name: str, num_classes: int, pool: str, kwargs: dict[str, Any]) -> nn.Module:
    if pool == "default":
        return _build(name, num_classes, kwargs)
    if "global_pool" in kwargs:
        raise ModelError("pool and global_pool say the same thing; give pool alone.")
    try:
        model = _build(name, num_classes, {**kwargs, "global_pool": pool})
    except ModelError:
        _build(name, num_classes, kwargs)  # if it cannot be built at all, that is the error to report
        raise ModelError(_lacks_pool(name, pool)) from None
    # Convolutional networks take the option too, and mean another thing by it.
    if not isinstance(model, VisionTransformer) or model.global_pool != pool:
        raise ModelError(_lacks_pool(name, pool))
    return model


def _build(name: str, num_classes: int, kwargs: dict[str, Any]) -> nn.Module:
    # timm looks at a name up to its first dot alone, and would read a folder or a network if it has a scheme.
    if not _NAME.fullmatch(name) or (name not in OWN_MODELS and not timm.is_model(name)):
        raise ModelError(_unknown_name(name))
    loads = sorted(_LOADING & kwargs.keys())
    if loads:
        raise ModelError(f"{loads[0]} would fetch or load weights by another way; give a local file as weights.")
    try:
        return _construct(name, num_classes, kwargs)
    except TypeError as error:
        if "img_size" in kwargs and "'img_size'" in str(error):
            return _build(name, num_classes, {k: v for k, v in kwargs.items() if k != "img_size"})
        for option in _OPTIONAL:
            if option in kwargs and f"'{option}'" in str(error):
                raise ModelError(_lacks(name, option)) from error
        raise ModelError(f"model '{name}' cannot be built with {_listed(kwargs)}: {error}.") from error
    except (ValueError, RuntimeError, AssertionError) as error:
        raise ModelError(f"model '{name}' cannot be built with {_listed(kwargs)}: {error}.") from error


def _construct(name: str, num_classes: int, kwargs: dict[str, Any]) -> nn.Module:
    if name == "resnet10":
        return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=num_classes, **kwargs)  # type: ignore[arg-type]
    if name in FAST_NETS:
        widths, experts = FAST_NETS[name]
        return FastNet(widths, num_classes, experts=experts, **kwargs)
    if name in SMALL_VITS:
        return small_vit(name, num_classes, **kwargs)
    if name in OWN_MODELS:
        return CifarResNet(int(name.removeprefix("resnet").removesuffix("-cifar")), num_classes, **kwargs)
    return timm.create_model(name, pretrained=False, num_classes=num_classes, **kwargs)


def _check_head_start(head: str, std: float, bias: str, num_classes: int) -> None:
    if not (std >= 0 or std == -1):
        raise ModelError(f"head_std is a standard deviation, not {std}; set it to 0 or more, or to -1 to leave it.")
    if head == "cosine" and (std >= 0 or bias != "model"):
        raise ModelError(
            "head_std and head_bias are for a linear classifier: a cosine one compares directions and has no bias; "
            "leave head_std at -1 and head_bias at model, or set head to linear."
        )
    if bias == "log(C-1)" and num_classes < 2:
        raise ModelError("head_bias log(C-1) needs at least two classes; leave head_bias at model.")


def _start_heads(model: nn.Module, std: float, bias: str) -> None:
    """Give all classifiers of the model the start that was asked for."""
    if std < 0 and bias == "model":
        return
    for name, head in find_classifier(model):
        if not isinstance(head, nn.Linear) or (head.bias is None and bias != "model"):
            raise ModelError(
                f"head_std and head_bias are for a linear classifier with a bias, but '{name}' is {head}; leave "
                "head_std at -1 and head_bias at model."
            )
        if std >= 0:
            # Without a spread there is nothing to cut off, and the routine would divide by it.
            nn.init.trunc_normal_(head.weight, std=std) if std else nn.init.zeros_(head.weight)
            if head.bias is not None:
                nn.init.zeros_(head.bias)
        if bias == "log(C-1)":
            nn.init.constant_(head.bias, -math.log(head.out_features - 1))


def _unknown_name(name: str) -> str:
    if ":" in name:
        return f"model '{name}' would be fetched from a network; give the timm name, and the weights as a local file."
    if "/" in name or "\\" in name:
        return f"model '{name}' looks like a path; give the timm name, and the weights as a local file."
    near = difflib.get_close_matches(name, [*OWN_MODELS, *timm.list_models()], n=3, cutoff=0.5)
    hint = f"nearest names: {', '.join(near)}" if near else "timm.list_models() lists what there is"
    return f"unknown model '{name}'; {hint}; own models: {', '.join(OWN_MODELS)}."


def _lacks(name: str, option: str) -> str:
    setting, what = _OPTIONAL[option]
    return f"model '{name}' has no {what}; leave {setting} at 0, or choose another model, for example a timm ViT."


def _lacks_pool(name: str, pool: str) -> str:
    return (
        f"model '{name}' does not take pool '{pool}', which is for timm's VisionTransformer with one class token; "
        "leave pool at default, or choose such a model, for example vit_base_patch16_224 or vit-nano-p4."
    )


def _listed(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in kwargs.items()) or "its defaults"
