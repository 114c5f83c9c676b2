"""How a stranger builds the architecture of a model again: by timm alone where that is possible."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import timm
from torch import nn

from relatum.data.preprocess import Preprocess
from relatum.errors import ModelError
from relatum.models.create import OWN_MODELS
from relatum.models.find import find_classifier
from relatum.models.heads import CosineClassifier
from relatum.models.small_vit import IMAGE_SIZE, SMALL_VITS, TIMM_NAME, timm_arguments

if TYPE_CHECKING:
    from relatum.trained import Trained


@dataclass(frozen=True)
class Blueprint:
    """What it takes to build a model again.

    Args:
        name: architecture, without a tag.
        classes: K.
        args: further arguments of the architecture, all of which it accepts.
        cosine: name and module of each cosine classifier; none if the classifier is the architecture's own.
    """

    name: str
    classes: int
    args: dict[str, Any]
    cosine: tuple[tuple[str, CosineClassifier], ...] = ()

    @property
    def by_timm(self) -> bool:
        """Whether `timm.create_model` can build all of it."""
        return self.name not in OWN_MODELS and not self.cosine

    @property
    def by_relatum(self) -> bool:
        """Whether only this library has the layers."""
        return self.name in OWN_MODELS and self.name != "resnet10"

    @property
    def note(self) -> str:
        """One sentence for the user on who can load the weights."""
        if self.by_timm:
            return "timm loads this folder by itself"
        others = "model.pt2 (torch-export) and model.onnx (onnx) need nothing of ours"
        if self.by_relatum:
            return f"timm does not know {self.name}: its weights load with relatum; {others}"
        reason = "the cosine classifier" if self.cosine else self.name
        return f"timm does not know {reason} by name: README.md shows the few lines that build it; {others}"


def blueprint(trained: Trained) -> Blueprint:
    """Describe how to build the model of `trained`; a ModelError if it has no name by which to do so."""
    name = trained.settings.name
    if name not in OWN_MODELS and not timm.is_model(name):
        raise ModelError(f"'{name}' cannot be built by name; export this model as torch-export or onnx.")
    heads = find_classifier(trained.model)
    cosine = tuple((where, head) for where, head in heads if isinstance(head, CosineClassifier))
    classes = len(trained.class_names)
    if name in SMALL_VITS:
        args = _without_size(trained.kwargs) | timm_arguments(name, trained.kwargs.get("img_size", IMAGE_SIZE))
        name = TIMM_NAME
    elif name in OWN_MODELS:
        args = _without_size(trained.kwargs)
    else:
        name = name.partition(".")[0]  # a tag names published weights, and these are others
        args = _timm_args(name, classes, trained)
    if trained.settings.pool != "default":
        args["global_pool"] = trained.settings.pool
    return Blueprint(name, classes, _plain_json(args), cosine)


def timm_config(plan: Blueprint, model: nn.Module, names: tuple[str, ...], preprocess: Preprocess) -> dict[str, Any]:
    """Return the content of config.json, in timm's keys.

    An architecture that timm does not know keeps the keys, under a name that timm refuses rather than misreads.
    """
    known = getattr(model, "pretrained_cfg", {})
    pretrained = {
        "input_size": [3, preprocess.image_size, preprocess.image_size],
        "fixed_input_size": bool(known.get("fixed_input_size", False)),
        "interpolation": "bilinear",
        "crop_pct": crop_share(preprocess),
        "crop_mode": "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": plan.classes,
        "first_conv": known.get("first_conv"),
        "classifier": known.get("classifier"),
    }
    config: dict[str, Any] = {"architecture": plan.name, "num_classes": plan.classes, "model_args": plan.args}
    if plan.cosine:
        config |= {"architecture": f"{plan.name}+cosine", "base": plan.name, "scale": plan.cosine[0][1].scale}
    pool = getattr(model, "global_pool", None)
    if pool and isinstance(pool, str):  # in some models it is a layer
        config["global_pool"] = pool
    return {**config, "label_names": list(names), "pretrained_cfg": pretrained}


def crop_share(preprocess: Preprocess) -> float:
    """Return the crop_pct from which timm, which divides and rounds down, recovers `resize` exactly."""
    share = preprocess.image_size / preprocess.resize
    while math.floor(preprocess.image_size / share) < preprocess.resize:
        share = math.nextafter(share, 0.0)
    return share


def _timm_args(name: str, classes: int, trained: Trained) -> dict[str, Any]:
    args = dict(trained.kwargs)
    if "img_size" in args and not _takes_size(name, classes, args):
        args = _without_size(args)
    known = getattr(trained.model, "pretrained_cfg", {})
    if known.get("fixed_input_size") and "img_size" not in args:
        # timm would otherwise build for the size of our images, not for the size this model was built with.
        args["img_size"] = list(known["input_size"][-2:])
    return args


def _takes_size(name: str, classes: int, args: dict[str, Any]) -> bool:
    # The same trial as in create_model: signatures of timm's constructors do not tell.
    try:
        timm.create_model(name, pretrained=False, num_classes=classes, **args)
    except TypeError as error:
        if "'img_size'" not in str(error):
            raise
        return False
    return True


def _without_size(args: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in args.items() if key != "img_size"}


def _plain_json(args: dict[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(args))
    except TypeError as error:
        raise ModelError(
            f"the model was built with arguments that a JSON file cannot hold ({error}); "
            "export it as torch-export or onnx."
        ) from error
