"""Masked autoencoders of other libraries in the sizes of one of ours, for `mae_speed.py`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import timm
from torch import Tensor, nn

from relatum.models.mae import MaskedAutoencoder

Loss = Callable[[Tensor], Tensor]


def _sizes(model: MaskedAutoencoder) -> dict[str, Any]:
    """What the others must have in common with `model`."""
    encoder: Any = model.encoder
    return {
        "image": encoder.patch_embed.img_size[0],
        "width": encoder.embed_dim,
        "depth": len(encoder.blocks),
        "heads": encoder.blocks[0].attn.num_heads,
        "decoder_width": model.decoder.embed.out_features,
        "decoder_depth": len(model.decoder.blocks),
        "decoder_heads": model.decoder.blocks[0].attn.num_heads,
    }


def transformers_mae(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """Build transformers' model with its own loss; its attention is the fused one of torch, as in ours."""
    import transformers

    sizes = _sizes(model)
    config = transformers.ViTMAEConfig(
        image_size=sizes["image"],
        patch_size=model.patch,
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["depth"],
        num_attention_heads=sizes["heads"],
        intermediate_size=4 * sizes["width"],
        layer_norm_eps=1e-6,
        decoder_hidden_size=sizes["decoder_width"],
        decoder_num_hidden_layers=sizes["decoder_depth"],
        decoder_num_attention_heads=sizes["decoder_heads"],
        decoder_intermediate_size=4 * sizes["decoder_width"],
        mask_ratio=model.ratio,
        norm_pix_loss=True,
        attn_implementation="sdpa",
    )
    theirs = transformers.ViTMAEForPreTraining(config)
    return theirs, lambda images: theirs(images).loss


class LightlyMae(nn.Module):
    """Encoder and decoder of lightly; it predicts the hidden patches only.

    Args:
        model: ours, whose sizes it takes.
    """

    def __init__(self, model: MaskedAutoencoder) -> None:
        super().__init__()
        from lightly.models import utils
        from lightly.models.modules import MAEDecoderTIMM, MaskedVisionTransformerTIMM

        sizes = _sizes(model)
        self.utils, self.ratio, self.patch = utils, model.ratio, model.patch
        vit = timm.create_model(
            "vit_tiny_patch16_224",
            num_classes=0,
            img_size=sizes["image"],
            patch_size=model.patch,
            embed_dim=sizes["width"],
            depth=sizes["depth"],
            num_heads=sizes["heads"],
        )
        self.backbone = MaskedVisionTransformerTIMM(vit=vit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has a second name from version 1.6 on, with the same arithmetic
            self.decoder = MAEDecoderTIMM(
                num_patches=vit.patch_embed.num_patches,
                patch_size=model.patch,
                embed_dim=sizes["width"],
                decoder_embed_dim=sizes["decoder_width"],
                decoder_depth=sizes["decoder_depth"],
                decoder_num_heads=sizes["decoder_heads"],
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return the loss."""
        utils, whole = self.utils, (len(images), self.backbone.sequence_length)
        keep, hidden = utils.random_token_mask(whole, self.ratio, device=images.device)
        codes = self.decoder.embed(self.backbone.encode(images, idx_keep=keep))
        tokens = utils.repeat_token(self.decoder.mask_token, whole)
        tokens = utils.set_at_index(tokens, keep, codes.type_as(tokens))
        prediction = self.decoder.predict(utils.get_at_index(self.decoder.decode(tokens), hidden))
        targets = utils.get_at_index(utils.patchify(images, self.patch), hidden - 1)
        return nn.functional.mse_loss(prediction, utils.normalize_mean_var(targets))


def lightly_mae(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """Build lightly's modules, put together as its example does."""
    if importlib.util.find_spec("lightly") is None:
        raise SystemExit("lightly is not installed: pip install -c constraints.txt -e '.[bench]', or leave it out.")
    theirs = LightlyMae(model)
    return theirs, theirs


RIVALS: dict[str, Callable[[MaskedAutoencoder], tuple[nn.Module, Loss]]] = {
    "transformers": transformers_mae,
    "lightly": lightly_mae,
}
