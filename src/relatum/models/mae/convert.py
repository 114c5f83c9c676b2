"""The key layout of the public MAE checkpoints, to ours and back.

Theirs keeps everything in one module: the encoder's names are timm's, the decoder's begin with `decoder_`. Ours has the
encoder under `encoder.` and the decoder under `decoder.`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.mae.model import MaskedAutoencoder
from relatum.models.weights import read_weights, strip_prefixes

ENCODER, DECODER = "encoder.", "decoder."
_MASK_TOKEN = "mask_token"
_PUBLIC_DECODER = "decoder_"
_SHOWN = 5


def from_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a public checkpoint as `MaskedAutoencoder` names them."""
    return {_our_name(key): value for key, value in tensors.items()}


def to_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a `MaskedAutoencoder` as public checkpoints do; what is in neither part is left out."""
    public = {}
    for key, value in tensors.items():
        if key.startswith(ENCODER):
            public[key.removeprefix(ENCODER)] = value
        elif key.startswith(DECODER):
            name = key.removeprefix(DECODER)
            public[name if name == _MASK_TOKEN else _PUBLIC_DECODER + name] = value
    return public


def load_public(model: MaskedAutoencoder, path: str | Path) -> bool:
    """Load a checkpoint in the public layout, in place; on any error the model is left as it was.

    Args:
        model: the autoencoder to fill.
        path: .safetensors, or a file of torch that holds tensors only.

    Returns:
        Whether the file had a decoder. If not, a warning says that the model's decoder keeps its weights.

    Raises:
        ModelError: no such file, unreadable, or of another architecture.
    """
    path = Path(path)
    found = _read_ours(path)
    has_decoder = any(key.startswith(DECODER) for key in found)
    own = {key: value for key, value in model.state_dict().items() if key.startswith((ENCODER, DECODER))}
    _check_fit(path, found, {k: v for k, v in own.items() if has_decoder or k.startswith(ENCODER)})
    model.load_state_dict(found, strict=False)
    if not has_decoder:
        warnings.warn(
            f"{path.name} holds an encoder only: the decoder keeps its random weights, and its pictures mean nothing "
            "until it is trained.",
            stacklevel=2,
        )
    return has_decoder


def encoder_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the encoder of a masked autoencoder, as timm names its tensors; the decoder is left out.

    Args:
        path: a file in the public layout or in ours, with or without a decoder.
    """
    return {
        key.removeprefix(ENCODER): value for key, value in _read_ours(Path(path)).items() if key.startswith(ENCODER)
    }


def _read_ours(path: Path) -> dict[str, Tensor]:
    tensors = strip_prefixes(read_weights(path), nn.Identity())  # a module without tensors owns no prefix: all are foreign
    ours = any(key.startswith(ENCODER) for key in tensors)
    return tensors if ours else from_public(tensors)


def _our_name(key: str) -> str:
    if key == _MASK_TOKEN:
        return DECODER + key
    if key.startswith(_PUBLIC_DECODER):
        return DECODER + key.removeprefix(_PUBLIC_DECODER)
    return ENCODER + key


def _check_fit(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise one error that names everything that does not fit."""
    have, want = to_public(found), to_public(wanted)
    shapes = [
        f"{key} {tuple(have[key].shape)} in the file, {tuple(value.shape)} in the model"
        for key, value in want.items()
        if key in have and have[key].shape != value.shape
    ]
    faults = {
        "missing": [key for key in want if key not in have],
        "unexpected": [key for key in have if key not in want],
        "other shapes": shapes,
    }
    listed = "; ".join(f"{fault}: {_some(entries)}" for fault, entries in faults.items() if entries)
    if listed:
        raise ModelError(
            f"'{path}' is no checkpoint of this masked autoencoder: {listed}. Build the model with the encoder, image "
            "size and decoder of the file, or take another file."
        )


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
