"""Start a classifier from a pretrained encoder: everything but its classifier comes from a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.find import find_classifier
from relatum.models.mae.convert import encoder_weights
from relatum.models.mae.positions import resize_positions
from relatum.models.weights import list_faults
from relatum.relation.relation import MODULE_NAME

_POSITIONS = "pos_embed"
_NORM, _POOLED_NORM = "norm.", "fc_norm."


def load_encoder(model: nn.Module, path: str | Path) -> tuple[str, ...]:
    """Load a pretrained encoder into a ViT, in place; on any error the model is left as it was.

    The file may be a public MAE checkpoint or one of ours (decoders are ignored), the checkpoint of a run (its moving
    average, if it had one), or a plain timm ViT, whose classifier is ignored. Positions of another grid are resized and
    trainable afterwards. A model with `pool="avg"` has no place for the final normalisation of an encoder that pools
    the class token: its own, after pooling, starts anew.

    Args:
        model: a `VisionTransformer` of timm, with or without a classifier.
        path: .safetensors, or a file of torch that holds tensors only.

    Returns:
        The names of the model's tensors that the file does not fill: classifier, and `fc_norm` with `pool="avg"`.

    Raises:
        ModelError: not a ViT, no such file, unreadable, or of another architecture.
    """
    path = Path(path)
    vit = _check_vit(model)
    if path.is_dir():
        raise ModelError(f"'{path}' is a folder; give a file, of a run directory pretrain/encoder.safetensors.")
    own = {key: value for key, value in vit.state_dict().items() if not key.startswith(f"{MODULE_NAME}.")}
    found = _with_a_place(encoder_weights(path), own, _head_names(vit))
    found = _fit_positions(vit, found, path)
    anew = tuple(key for key in own if key.startswith((*_head_names(vit), _POOLED_NORM)) and key not in found)
    _check_fit(vit, found, {key: value for key, value in own.items() if key not in anew}, path)
    vit.load_state_dict(found, strict=False)
    if isinstance(vit.pos_embed, nn.Parameter):
        vit.pos_embed.requires_grad_(True)  # frozen where the model was the encoder of a masked autoencoder
    return anew


def _check_vit(model: nn.Module) -> VisionTransformer:
    if isinstance(model, VisionTransformer):
        return model
    raise ModelError(
        f"a pretrained encoder starts a timm VisionTransformer, not {type(model).__name__}; give a file of the whole "
        "model as weights, or choose a ViT, for example vit-nano-p4 or vit_base_patch16_224."
    )


def _head_names(model: VisionTransformer) -> tuple[str, ...]:
    """How the names of the classifiers' tensors begin."""
    if model.num_classes == 0:
        return ("head.",)
    return tuple(f"{name}." for name, _ in find_classifier(model))


def _with_a_place(tensors: dict[str, Tensor], own: Mapping[str, Tensor], heads: tuple[str, ...]) -> dict[str, Tensor]:
    """Leave out the classifier of the file, and its final normalisation if the model normalises after pooling."""
    moved = any(key.startswith(_POOLED_NORM) for key in own) and not any(key.startswith(_NORM) for key in own)
    placeless = (*heads, _NORM) if moved else heads
    return {key: value for key, value in tensors.items() if not key.startswith(placeless)}


def _fit_positions(model: VisionTransformer, tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Bring the positions of the file to the grid of the model; what cannot be of this model is left to the check."""
    have, want = tensors.get(_POSITIONS), model.pos_embed
    if have is None or want is None or have.shape == want.shape or have.ndim != 3 or have.shape[2] != want.shape[2]:
        return tensors
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    patches = have.shape[1] - prefix
    side = math.isqrt(max(patches, 0))
    if side == 0 or side * side != patches:
        rows, columns = model.patch_embed.grid_size
        raise ModelError(
            f"'{path}' has {patches} positions of patches, which is no square: its grid, needed to resize them to "
            f"{rows} x {columns}, is unknown; resize {_POSITIONS} with relatum.models.mae.resize_positions and save "
            "it, or build the model for the image size of the file."
        )
    resized = resize_positions(have, (side, side), model.patch_embed.grid_size, prefix)
    return {**tensors, _POSITIONS: resized}


def _check_fit(model: nn.Module, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path) -> None:
    """Raise one error that says in words, then by name, what does not fit."""
    faults = list_faults(found, wanted, limit=3)
    if not faults:
        return
    theirs, ours = _sizes(found), _sizes(wanted)
    other = [what for what in ours if what in theirs and theirs[what] != ours[what]]
    words = f"the file has {_in_words(theirs, other)}, the model {_in_words(ours, other)}; " if other else ""
    if not theirs:
        words = "the file holds no ViT; "
    cure = "build the model that the file was made with, or take another file"
    if not other and any(key.startswith(_POOLED_NORM) for key in found):
        cure = "the encoder was trained on the mean of the patches: set pool to avg, or take another file"
    raise ModelError(
        f"'{path}' is a checkpoint of another architecture than this {type(model).__name__}: {words}{faults}. "
        f"To mend it, {cure}."
    )


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes of a ViT that its tensors tell; none if it is not one. The number of heads leaves no trace in them."""
    sizes: dict[str, int] = {}
    projection = tensors.get("patch_embed.proj.weight")  # (width, channels, patch, patch)
    if projection is not None and projection.ndim == 4:
        sizes |= {"width": projection.shape[0], "patch size": projection.shape[3], "channels": projection.shape[1]}
    # At most so many digits: a file may call a tensor by a number that no model has, and no int() would take.
    blocks = [int(match[1]) for match in map(re.compile(r"blocks\.(\d{1,6})\.").match, tensors) if match]
    if blocks:
        sizes["depth"] = max(blocks) + 1
    return sizes


def _in_words(sizes: Mapping[str, int], chosen: list[str]) -> str:
    return " and ".join(f"{what} {sizes[what]}" for what in chosen)
