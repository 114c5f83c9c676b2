"""Masked autoencoders: an ordinary timm ViT that sees few patches, and a light decoder that draws the others."""

from relatum.models.mae.convert import encoder_weights, from_public, load_public, save_encoder, to_public
from relatum.models.mae.masks import MASKS, TokenMask, check_mask, draw_mask, mask_from_noise
from relatum.models.mae.model import MaskedAutoencoder, MaskedOutput
from relatum.models.mae.patches import masked_mse, patchify, psnr, reconstruction_loss, unpatchify
from relatum.models.mae.pictures import Picture, reconstruction_picture
from relatum.models.mae.positions import resize_positions, sincos_positions
from relatum.models.mae.presets import MAE_PRESETS, MaePreset, create_mae

__all__ = [
    "MAE_PRESETS",
    "MASKS",
    "MaePreset",
    "MaskedAutoencoder",
    "MaskedOutput",
    "Picture",
    "TokenMask",
    "check_mask",
    "create_mae",
    "draw_mask",
    "encoder_weights",
    "from_public",
    "load_public",
    "mask_from_noise",
    "masked_mse",
    "patchify",
    "psnr",
    "reconstruction_loss",
    "reconstruction_picture",
    "resize_positions",
    "save_encoder",
    "sincos_positions",
    "to_public",
    "unpatchify",
]
