"""The key layout of the public MAE checkpoints, to ours and back.

Theirs keeps everything in one module: the encoder's names are timm's, the decoder's begin with `decoder_`. Ours has the
encoder under `encoder.` and the decoder under `decoder.`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.files import write_atomically
from relatum.models.mae.model import MaskedAutoencoder
from relatum.models.weight_files import read_weights
from relatum.models.weights import list_faults, strip_prefixes
from relatum.relation.relation import MODULE_NAME

ENCODER, DECODER = "encoder.", "decoder."
_MASK_TOKEN = "mask_token"
_PUBLIC_DECODER = "decoder_"
# What the checkpoint of a run holds, by the beginning of its names; the moving average is the better model.
_MODEL, _AVERAGE = "model.", "ema."
_CHECKPOINT = (_MODEL, _AVERAGE, "optimizer.", "rng.")


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


def save_encoder(model: MaskedAutoencoder, path: str | Path) -> None:
    """Write the encoder as a safetensors file that timm's model of its name loads; only the head is missing in it.

    The file appears whole or not at all.
    """
    # Weights in channels-last memory order cannot be written as they lie.
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.encoder.state_dict().items()}
    write_atomically(Path(path), save(tensors))


def encoder_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the encoder of a masked autoencoder, as timm names its tensors; the decoder is left out.

    Args:
        path: a file in the public layout or in ours, with or without a decoder; the checkpoint of a run, of which the
            moving average counts if there is one; or a plain ViT, which is returned whole.
    """
    return {
        key.removeprefix(ENCODER): value for key, value in _read_ours(Path(path)).items() if key.startswith(ENCODER)
    }


def _read_ours(path: Path) -> dict[str, Tensor]:
    # A module without tensors owns no prefix: all of them are foreign and taken off.
    tensors = strip_prefixes(_trained_model(read_weights(path)), nn.Identity())
    tensors = {key: value for key, value in tensors.items() if not key.startswith(f"{MODULE_NAME}.")}
    ours = any(key.startswith(ENCODER) for key in tensors)
    return tensors if ours else from_public(tensors)


def _trained_model(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the model in the tensors of a run's checkpoint, and those of any other file as they are."""
    if not all(key.startswith(_CHECKPOINT) for key in tensors):
        return tensors
    part = _AVERAGE if any(key.startswith(_AVERAGE) for key in tensors) else _MODEL
    return {key.removeprefix(part): value for key, value in tensors.items() if key.startswith(part)}


def _our_name(key: str) -> str:
    if key == _MASK_TOKEN:
        return DECODER + key
    if key.startswith(_PUBLIC_DECODER):
        return DECODER + key.removeprefix(_PUBLIC_DECODER)
    return ENCODER + key


def _check_fit(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise one error that names everything that does not fit."""
    listed = list_faults(to_public(found), to_public(wanted))
    if listed:
        raise ModelError(
            f"'{path}' is no checkpoint of this masked autoencoder: {listed}. Build the model with the encoder, image "
            "size and decoder of the file, or take another file."
        )
