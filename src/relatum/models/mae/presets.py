"""Masked autoencoders by the name of their encoder, with a decoder that suits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relatum.errors import ConfigError, suggest
from relatum.models.create import create_model
from relatum.models.mae.model import MaskedAutoencoder


@dataclass(frozen=True)
class MaePreset:
    """Image size and decoder for one encoder.

    Args:
        img_size: side of the images in pixels.
        decoder_width: channels of the decoder.
        decoder_depth: blocks of the decoder.
        decoder_heads: attention heads of the decoder.
    """

    img_size: int
    decoder_width: int
    decoder_depth: int
    decoder_heads: int


# The published decoder, 512 x 8, is several times as large as a tiny encoder: the smaller ones get a smaller decoder.
_LARGE_IMAGES = {"tiny": (128, 4, 4), "small": (256, 4, 8), "base": (512, 8, 16), "large": (512, 8, 16)}
_SMALL_IMAGES = {"pico": (64, 1, 2), "nano": (64, 1, 2), "tiny": (96, 2, 3), "small": (192, 2, 6)}
# 256 tokens of 12 values each: what is hidden needs more thought than with patches of 4.
_FINE_PATCHES = {"pico": (64, 2, 2), "nano": (96, 2, 3), "tiny": (192, 4, 3), "small": (192, 4, 6)}

MAE_PRESETS: dict[str, MaePreset] = {
    **{f"vit_{size}_patch16_224": MaePreset(224, *decoder) for size, decoder in _LARGE_IMAGES.items()},
    **{f"vit-{size}-p4": MaePreset(32, *decoder) for size, decoder in _SMALL_IMAGES.items()},
    **{f"vit-{size}-p2": MaePreset(32, *decoder) for size, decoder in _FINE_PATCHES.items()},
    **{f"vit-{size}-p8": MaePreset(64, *decoder) for size, decoder in _SMALL_IMAGES.items()},
}


def create_mae(
    name: str,
    *,
    img_size: int | tuple[int, int] | None = None,
    decoder_width: int | None = None,
    decoder_depth: int | None = None,
    decoder_heads: int | None = None,
    mask: str = "random",
    ratio: float = 0.75,
    normalised: bool = True,
    **kwargs: Any,
) -> MaskedAutoencoder:
    """Build a masked autoencoder; its random weights come from torch's generator (`torch.manual_seed`).

    Args:
        name: of the encoder: a key of `MAE_PRESETS`, or another ViT that `create_model` knows, with all sizes given.
        img_size: side of the images; None takes the preset's.
        decoder_width: channels of the decoder; None takes the preset's.
        decoder_depth: blocks of the decoder; None takes the preset's.
        decoder_heads: attention heads of the decoder; None takes the preset's.
        mask: random, block or grid.
        ratio: share of the patches that is hidden.
        normalised: predict normalised patches, or the values of the image.
        **kwargs: passed on to the encoder.
    """
    given = {
        "img_size": img_size,
        "decoder_width": decoder_width,
        "decoder_depth": decoder_depth,
        "decoder_heads": decoder_heads,
    }
    sizes = {**_preset(name, given), **{key: value for key, value in given.items() if value is not None}}
    encoder: Any = create_model(name, 1, img_size=sizes.pop("img_size"), **kwargs)
    return MaskedAutoencoder(encoder, mask=mask, ratio=ratio, normalised=normalised, **sizes)


def _preset(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if name in MAE_PRESETS:
        return vars(MAE_PRESETS[name])
    missing = [key for key, value in given.items() if value is None]
    if missing:
        raise ConfigError(
            f"there is no masked autoencoder preset for '{name}'; give {', '.join(missing)}, or take a preset: "
            f"{suggest(name, MAE_PRESETS)}"
        )
    return {}
