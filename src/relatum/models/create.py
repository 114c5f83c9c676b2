"""Models by name: the small CIFAR networks, ResNet-10, small ViTs, and everything timm has."""

from __future__ import annotations

import difflib
from typing import Any

import timm
from timm.layers import DropPath
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from relatum.errors import ModelError, suggest
from relatum.models.cifar_resnet import CIFAR_DEPTHS, CifarResNet
from relatum.models.find import find_classifier
from relatum.models.heads import HEADS, replace_classifier
from relatum.models.small_vit import SMALL_VITS, small_vit
from relatum.models.weights import load_weights

__all__ = ["OWN_MODELS", "create_model", "find_classifier"]

OWN_MODELS = (*(f"resnet{depth}-cifar" for depth in CIFAR_DEPTHS), "resnet10", *SMALL_VITS)

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
    drop_rate: float = 0.0,
    drop_path: float = 0.0,
    **kwargs: Any,
) -> nn.Module:
    """Build a model; its random weights come from torch's generator (`torch.manual_seed`).

    Args:
        name: resnet20-cifar, resnet32-cifar, resnet44-cifar, resnet56-cifar, resnet10, a small ViT (vit-nano-p4,
            see `small_vit`), or any timm model name.
        num_classes: K.
        head: classifier, "linear" or "cosine".
        scale: scale of the cosine classifier.
        weights: local file to start from (see `load_weights`); nothing is ever downloaded.
        drop_rate: dropout before the classifier.
        drop_path: stochastic depth: the rate at the last block, rising linearly from 0 at the first.
        **kwargs: passed on to the model, for example `patch_size=4`. `img_size` may always be given: networks without
            a fixed input size take images of any size and are built without it.

    Returns:
        A model (N, 3, H, W) -> (N, K) with timm's interface.

    Raises:
        ModelError: unknown name, head or option, or weights that do not fit.
    """
    if head not in HEADS:
        raise ModelError(f"unknown head '{head}'; {suggest(head, HEADS)}")
    if num_classes < 1:
        raise ModelError(f"a classifier needs at least one class, not {num_classes}; set num_classes.")
    if drop_rate:
        kwargs["drop_rate"] = drop_rate
    if drop_path:
        kwargs["drop_path_rate"] = drop_path
    model = _build(name, num_classes, kwargs)
    # Some timm models take the rate and never use it.
    if drop_path and not any(isinstance(part, DropPath) and part.drop_prob for part in model.modules()):
        raise ModelError(_lacks(name, "drop_path_rate"))
    if head != "linear":
        replace_classifier(model, head, num_classes, scale)
    if weights:
        load_weights(model, weights)
    return model


def _build(name: str, num_classes: int, kwargs: dict[str, Any]) -> nn.Module:
    if name not in OWN_MODELS and not timm.is_model(name):
        raise ModelError(_unknown_name(name))
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
    if name in SMALL_VITS:
        return small_vit(name, num_classes, **kwargs)
    if name in OWN_MODELS:
        return CifarResNet(int(name.removeprefix("resnet").removesuffix("-cifar")), num_classes, **kwargs)
    return timm.create_model(name, pretrained=False, num_classes=num_classes, **kwargs)


def _unknown_name(name: str) -> str:
    if ":" in name:
        return f"model '{name}' would be fetched from a network; give the timm name, and the weights as a local file."
    near = difflib.get_close_matches(name, [*OWN_MODELS, *timm.list_models()], n=3, cutoff=0.5)
    hint = f"nearest names: {', '.join(near)}" if near else "timm.list_models() lists what there is"
    return f"unknown model '{name}'; {hint}; own models: {', '.join(OWN_MODELS)}."


def _lacks(name: str, option: str) -> str:
    setting, what = _OPTIONAL[option]
    return f"model '{name}' has no {what}; leave {setting} at 0, or choose another model, for example a timm ViT."


def _listed(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in kwargs.items()) or "its defaults"
