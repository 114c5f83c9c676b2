"""What the encoder of a masked autoencoder must be like."""

from __future__ import annotations

from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from relatum.errors import ModelError


def check_encoder(encoder: nn.Module) -> None:
    """Raise ModelError unless `encoder` is a timm ViT whose visible patches can be encoded alone."""
    if not isinstance(encoder, VisionTransformer) or not isinstance(encoder.patch_embed, PatchEmbed):
        raise ModelError(
            f"a masked autoencoder needs a timm VisionTransformer that cuts images into patches, not "
            f"{type(encoder).__name__}; build one with create_model, for example vit-nano-p4 or vit_base_patch16_224."
        )
    needs = {
        "one class token and no other (class_token=True, reg_tokens=0)": encoder.has_class_token
        and encoder.num_prefix_tokens == 1,
        "a position for every token (pos_embed='learn', no_embed_class=False)": encoder.pos_embed is not None
        and not encoder.no_embed_class,
        "one image size (dynamic_img_size=False)": not encoder.dynamic_img_size,
        "its final norm before pooling (global_pool='token')": not isinstance(encoder.norm, nn.Identity),
        "all its tokens (patch_drop_rate=0)": isinstance(encoder.patch_drop, nn.Identity),
    }
    lacking = [need for need, met in needs.items() if not met]
    if lacking:
        raise ModelError(f"as the encoder of a masked autoencoder the ViT needs {' and '.join(lacking)}.")
    _check_size(encoder.patch_embed)


def _check_size(embed: PatchEmbed) -> None:
    height, width = embed.patch_size
    if height != width:
        raise ModelError(f"a masked autoencoder needs square patches, not {height} x {width}; set patch_size.")
    if any(side % height for side in embed.img_size):
        below = [max(side // height, 1) * height for side in embed.img_size]
        raise ModelError(
            f"images of {embed.img_size[0]} x {embed.img_size[1]} pixels cannot be cut into whole patches of {height}; "
            f"set data.image_size (img_size) to a multiple of {height}, for example {below[0]} x {below[1]}."
        )
