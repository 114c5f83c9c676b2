"""The masked autoencoder: a timm ViT as the encoder, a light decoder beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from timm.models import checkpoint_seq
from timm.models.vision_transformer import VisionTransformer
from torch import Generator, Tensor, nn
from torch.nn import functional

from relatum.errors import ConfigError, ModelError
from relatum.models.attention import quick_attention
from relatum.models.mae.checks import check_encoder
from relatum.models.mae.decoder import Decoder
from relatum.models.mae.masks import TokenMask, check_mask, draw_mask, mask_from_noise
from relatum.models.mae.patches import denormalise_patches, normalise_patches, patchify, reconstruction_loss, select
from relatum.models.mae.positions import sincos_positions


class MaskedOutput(NamedTuple):
    """What a masked autoencoder returns. The loss is left to whoever knows how many streams there are.

    Attributes:
        prediction: (N, L, P) all patches; with a relation on the decoder, (N + M, L, P); with `hidden_only` (N, H, P).
        targets: (N, L, P) what they should be, or (N, H, P).
        mask: (N, L) bool, True where a patch was hidden; with `hidden_only` (N, H), all True.
        ids_keep: (N, K) the visible patches.
        ids_restore: (N, L) the place of each patch in [visible; hidden].
    """

    prediction: Tensor
    targets: Tensor
    mask: Tensor
    ids_keep: Tensor
    ids_restore: Tensor

    @property
    def loss(self) -> Tensor:
        """`reconstruction_loss` of the plain model; an error where a relation has added a stream."""
        return reconstruction_loss(self.prediction, self.targets, self.mask)


class MaskedAutoencoder(nn.Module):
    """Hide most patches of an image, encode the others, predict what was hidden.

    The encoder stays an ordinary timm model: `model.encoder.state_dict()` loads into the same model built by
    `timm.create_model`, with nothing missing but the head. Its head is taken off, and its positions are the fixed
    sine-cosine ones, frozen here; a model that is fine-tuned from the state dict trains them.

    Args:
        encoder: a `VisionTransformer` of timm with a class token and `global_pool="token"`; changed in place.
        decoder_width: channels of the decoder, a multiple of 4.
        decoder_depth: blocks of the decoder.
        decoder_heads: attention heads of the decoder.
        mask: which patches are hidden: random, block or grid.
        ratio: share of the patches that is hidden.
        normalised: predict every patch at mean 0 and variance 1; False predicts the values of the image.
        initialise: give the encoder the random weights and the fixed positions of a masked autoencoder (from torch's
            generator); False keeps what it has, also its positions.

    Attributes:
        patch: side of a patch in pixels.
        grid: rows and columns of patches.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        mask: str = "random",
        ratio: float = 0.75,
        normalised: bool = True,
        initialise: bool = True,
    ) -> None:
        super().__init__()
        check_encoder(encoder)
        self.patch: int = encoder.patch_embed.patch_size[0]
        self.grid: tuple[int, int] = encoder.patch_embed.grid_size
        check_mask(mask, self.grid, ratio)
        self.mask, self.ratio, self.normalised = mask, ratio, normalised
        values = encoder.patch_embed.proj.in_channels * self.patch**2
        decoder = Decoder(encoder.embed_dim, values, self.grid, decoder_width, decoder_depth, decoder_heads)
        positions = sincos_positions(self.grid, encoder.embed_dim) if initialise else None
        encoder.reset_classifier(0)  # after the last check: on an error the encoder is as it was
        self.encoder, self.decoder = encoder, decoder  # registered in the order in which they run
        self._initialise(positions)

    def forward(
        self,
        images: Tensor,
        generator: Generator | None = None,
        noise: Tensor | None = None,
        hidden_only: bool = False,
    ) -> MaskedOutput:
        """Hide patches and predict them.

        Args:
            images: (N, C, H, W), of the size the encoder was built for.
            generator: source of the mask; None takes torch's own, as dropout does.
            noise: (N, L) instead: in each row the highest values are hidden, whatever the kind of mask.
            hidden_only: predict no visible patches, which the loss does not look at: the same loss for less. An error
                with a relation on the decoder, which needs all patches in their places.
        """
        self._check_images(images)
        masked = self.draw(images.shape[0], generator, noise, images.device)
        patches = patchify(images, self.patch)
        codes = self.encode(patches, masked.ids_keep)
        hidden = masked.mask
        if hidden_only:
            prediction = self.decoder.hidden(codes, masked.ids_keep, masked.ids_hidden)
            patches, hidden = select(patches, masked.ids_hidden), torch.ones_like(masked.ids_hidden, dtype=torch.bool)
        else:
            prediction = self.decoder(codes, masked.ids_restore)
        targets = normalise_patches(patches) if self.normalised else patches
        return MaskedOutput(prediction, targets, hidden, masked.ids_keep, masked.ids_restore)

    def draw(
        self, n: int, generator: Generator | None, noise: Tensor | None, device: torch.device | None = None
    ) -> TokenMask:
        """Draw the mask of `n` images, or make it from `noise`."""
        if noise is None:
            return draw_mask(self.mask, n, self.grid, self.ratio, generator, device)
        if generator is not None:
            raise ConfigError("give a generator or the noise of the mask, not both.")
        wanted = (n, self.grid[0] * self.grid[1])
        if tuple(noise.shape) != wanted:
            raise ModelError(
                f"the noise of the mask is {tuple(noise.shape)}, but {wanted} patches want one value each."
            )
        return mask_from_noise(noise.to(device), self.ratio)

    def encode(self, patches: Tensor, ids_keep: Tensor) -> Tensor:
        """Run the visible patches through the encoder; nothing is computed for the hidden ones, nor projected.

        Args:
            patches: (N, L, P).
            ids_keep: (N, K).

        Returns:
            (N, 1 + K, D), class token first.
        """
        encoder: Any = self.encoder
        embed = encoder.patch_embed
        # The convolution of timm as a matrix: in our patches the channel changes fastest.
        weight = embed.proj.weight.permute(0, 2, 3, 1).flatten(1)
        tokens = embed.norm(functional.linear(select(patches, ids_keep), weight, embed.proj.bias))
        tokens = tokens + functional.embedding(ids_keep + 1, encoder.pos_embed[0])
        first = (encoder.cls_token + encoder.pos_embed[:, :1]).to(tokens.dtype).expand(len(tokens), -1, -1)
        tokens = encoder.norm_pre(encoder.pos_drop(torch.cat([first, tokens], dim=1)))
        codes: Tensor = encoder.norm(self._run_blocks(tokens))
        return codes

    def _run_blocks(self, tokens: Tensor) -> Tensor:
        encoder: Any = self.encoder
        if encoder.grad_checkpointing:  # the blocks run again during backward and must do the same then
            return checkpoint_seq(encoder.blocks, tokens)
        with quick_attention(encoder.blocks):
            return encoder.blocks(tokens)

    def restore(self, prediction: Tensor, images: Tensor) -> Tensor:
        """Bring predicted patches (N, L, P) to the scale of `images`.

        With `normalised` patches this takes the mean and the spread of each true patch, hidden or not.
        """
        prediction = prediction.float()
        return denormalise_patches(prediction, patchify(images, self.patch)) if self.normalised else prediction

    def _check_images(self, images: Tensor) -> None:
        embed = self.encoder.patch_embed
        wanted = (embed.proj.in_channels, *embed.img_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != wanted:
            raise ModelError(
                f"the masked autoencoder was built for images {wanted}, not {tuple(images.shape[1:])}; resize the "
                "images (data.image_size), or build it with another img_size."
            )

    @torch.no_grad()
    def _initialise(self, positions: Tensor | None) -> None:
        _xavier(self.decoder)
        nn.init.normal_(self.decoder.mask_token, std=0.02)
        encoder: Any = self.encoder
        if positions is not None:
            _xavier(encoder)
            projection = encoder.patch_embed.proj
            nn.init.xavier_uniform_(projection.weight.flatten(1))  # a view: as if it were a linear layer
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
            nn.init.normal_(encoder.cls_token, std=0.02)
            encoder.pos_embed.copy_(positions)
        encoder.pos_embed.requires_grad_(False)


def _xavier(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            part.reset_parameters()
