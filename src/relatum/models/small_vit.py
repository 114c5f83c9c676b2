"""Vision transformers for images of 32 and 64 pixels: timm's own, in sizes that timm has no names for."""

from __future__ import annotations

from typing import Any

import timm
from torch import nn

from relatum.errors import ModelError

# The timm model of which every small ViT is a variant; `timm_arguments` says how to build it there.
TIMM_NAME = "vit_tiny_patch16_224"
IMAGE_SIZE = 32

_SIZES = {
    "pico": {"embed_dim": 64, "depth": 6, "num_heads": 2},
    "nano": {"embed_dim": 128, "depth": 6, "num_heads": 4},
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
}
_PATCHES = (2, 4, 8, 16)
SMALL_VITS = {
    f"vit-{size}-p{patch}": {"patch_size": patch, **widths} for size, widths in _SIZES.items() for patch in _PATCHES
}


def small_vit(name: str, num_classes: int, *, img_size: int = IMAGE_SIZE, **kwargs: Any) -> nn.Module:
    """Build timm's `VisionTransformer` with a class token, learned positions and normalisation before each sublayer.

    Args:
        name: a key of `SMALL_VITS`; the number after p is the side of a patch in pixels.
        num_classes: K.
        img_size: side of the images, a multiple of the patch.
        **kwargs: passed on to the transformer, for example `drop_path_rate=0.1`.

    Returns:
        A model (N, 3, img_size, img_size) -> (N, K).

    Raises:
        ModelError: the images cannot be cut into whole patches, or `kwargs` contradict the name.
    """
    fixed = timm_arguments(name, img_size)
    twice = sorted(fixed.keys() & kwargs.keys())
    if twice:
        raise ModelError(
            f"the name '{name}' fixes {', '.join(twice)} already; leave it out, choose another small ViT, "
            f"or build timm's {TIMM_NAME} with the sizes you want."
        )
    return timm.create_model(TIMM_NAME, pretrained=False, num_classes=num_classes, **fixed, **kwargs)


def timm_arguments(name: str, img_size: int = IMAGE_SIZE) -> dict[str, Any]:
    """Return the arguments with which `timm.create_model(TIMM_NAME, …)` builds the small ViT `name`."""
    sizes = SMALL_VITS[name]
    patch = sizes["patch_size"]
    if img_size < patch or img_size % patch:
        below = max(img_size // patch, 1) * patch
        raise ModelError(
            f"'{name}' cuts images into patches {patch} pixels wide, and {img_size} is no multiple of "
            f"{patch}; set data.image_size (img_size) to {below} or {below + patch}{_fitting(name, img_size)}."
        )
    return {"img_size": img_size, **sizes}


def _fitting(name: str, img_size: int) -> str:
    """End of the error: the same model with the patches that would do."""
    family = name.rpartition("-")[0]
    names = [f"{family}-p{patch}" for patch in _PATCHES if img_size >= patch and img_size % patch == 0]
    return f", or take {' or '.join(names)}" if names else ""
