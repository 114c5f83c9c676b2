"""The README.md of an exported folder: the exact code with which a stranger loads what lies beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import timm

from relatum.models.export_blueprint import Blueprint

if TYPE_CHECKING:
    from relatum.models.export import Exported
    from relatum.trained import Trained

_TIMM = """\
import timm
import torch
from PIL import Image, ImageOps

model = timm.create_model("local-dir:.", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
with torch.inference_mode():
    image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
    logits = model(transform(image).unsqueeze(0))
print(model.pretrained_cfg["label_names"][logits.argmax()])
"""

_READ_IMAGE = """\
import json

import numpy as np
from PIL import Image, ImageOps

class_names = [line.rstrip("\\n") for line in open("classes.txt", encoding="utf-8")]


def read_image(path):
    p = json.load(open("preprocess.json"))
    size, image = p["image_size"], ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    if image.size != (size, size):
        short = min(image.size)
        image = image.resize([int(p["resize"] * side / short) for side in image.size], Image.Resampling.BILINEAR)
        left, top = (round((side - size) / 2) for side in image.size)
        image = image.crop((left, top, left + size, top + size))
    pixels = (np.asarray(image) / 255 - p["mean"]) / p["std"]
    return pixels.transpose(2, 0, 1)[None].astype(np.float32)  # (1, 3, size, size)
"""

_TORCH_EXPORT = """\
import torch

model = torch.export.load("model.pt2").module()
logits = model(torch.from_numpy(read_image("photo.jpg")))
print(class_names[logits.argmax()])
"""

_ONNX = """\
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
logits = session.run(["logits"], {"images": read_image("photo.jpg")})[0]
print(class_names[logits.argmax()])
"""

_POOLS = {
    "avg": "The classifier gets the mean of the patch tokens, normalised (`global_pool='avg'`).\n",
    "token": "The classifier gets the class token (`global_pool='token'`).\n",
}

_COSINE = """\
class Cosine(torch.nn.Linear):
    def forward(self, x):
        x, rows = (torch.nn.functional.normalize(v, dim=-1) for v in (x, self.weight))
        return SCALE * torch.nn.functional.linear(x, rows)
"""


def readme(trained: Trained, results: Sequence[Exported], plan: Blueprint | None) -> str:
    """Return the text for the files in `results`; `plan` says how to build the model that takes the safetensors."""
    size, classes = trained.preprocess.image_size, len(trained.class_names)
    parts = [
        f"# {trained.settings.name}, {classes} classes\n",
        f"An image classifier: images (N, 3, {size}, {size}) float32 in, logits (N, {classes}) out.\n"
        f"{_POOLS.get(trained.settings.pool, '')}"
        "The code below runs in this folder.\n",
        "- `classes.txt`: the name of each output, one per line\n"
        "- `preprocess.json`: shorter side to `resize`, centre crop of `image_size`, pixel / 255, minus `mean`, "
        "over `std`\n",
    ]
    sections = [_section(result, plan) for result in results]
    if any("read_image(" in section for section in sections):
        parts.append(_headed("Class names and image, for the code that follows", "", _READ_IMAGE))
    return "\n".join(parts + sections)


def _section(result: Exported, plan: Blueprint | None) -> str:
    checked = f"Checked against the trained model: largest difference of logits {result.max_difference:.1g}."
    if result.format == "torch-export":
        return _headed("torch.export: needs torch only", checked, _TORCH_EXPORT)
    if result.format == "onnx":
        return _headed("ONNX: needs onnxruntime only", checked, _ONNX)
    if plan is None:
        raise ValueError("safetensors needs a blueprint")
    if plan.by_timm:
        return _headed(f"timm: needs timm only (checked with {timm.__version__})", checked, _TIMM)
    return _headed("model.safetensors", f"{plan.note[0].upper()}{plan.note[1:]}. {checked}", _building_code(plan))


def _building_code(plan: Blueprint) -> str:
    options = "".join(f", {key}={value!r}" for key, value in plan.args.items())
    replace: list[str] = []
    if plan.by_relatum:
        head = f', head="cosine", scale={plan.cosine[0][1].scale!r}' if plan.cosine else ""
        source, build = "import relatum", f'relatum.create_model("{plan.name}", {plan.classes}{head}{options})'
    else:
        source, build = _timm_source(plan, options)
        replace = [
            f'model.set_submodule("{name}", Cosine({head.in_features}, {head.out_features}, bias=False))'
            for name, head in plan.cosine
        ]
    lines = [
        "import torch",
        "from safetensors.torch import load_file",
        source,
        *(["", _COSINE.replace("SCALE", repr(plan.cosine[0][1].scale))] if replace else []),
        f"model = {build}",
        *replace,
        'model.load_state_dict(load_file("model.safetensors"))',
        'logits = model.eval()(torch.from_numpy(read_image("photo.jpg")))',
        "print(class_names[logits.argmax()])",
    ]
    return "\n".join(lines) + "\n"


def _timm_source(plan: Blueprint, options: str) -> tuple[str, str]:
    if plan.name == "resnet10":
        source = "from timm.models.resnet import BasicBlock, ResNet"
        return source, f"ResNet(BasicBlock, (1, 1, 1, 1), num_classes={plan.classes}{options})"
    return "import timm", f'timm.create_model("{plan.name}", num_classes={plan.classes}{options})'


def _headed(title: str, text: str, code: str) -> str:
    return f"## {title}\n\n" + (f"{text}\n\n" if text else "") + f"```python\n{code}```\n"
