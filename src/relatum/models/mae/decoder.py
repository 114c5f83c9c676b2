"""The light decoder of a masked autoencoder."""

from __future__ import annotations

import torch
from timm.layers import LayerNorm
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional

from relatum.errors import ConfigError, ModelError
from relatum.models.attention import quick_attention
from relatum.models.last_block import block_for, can_be_partial, hooks_of
from relatum.models.mae.patches import select
from relatum.models.mae.positions import Grid, sincos_positions


class Decoder(nn.Module):
    """From the codes of the visible patches to the values of all patches.

    Args:
        encoder_width: channels D of the codes.
        patch_values: values P in a patch.
        grid: rows and columns of patches.
        width: channels of the decoder, a multiple of 4 and of `heads`.
        depth: number of blocks.
        heads: attention heads.
    """

    def __init__(self, encoder_width: int, patch_values: int, grid: Grid, width: int, depth: int, heads: int) -> None:
        super().__init__()
        _check_sizes(width, depth, heads)
        self.embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("pos_embed", sincos_positions(grid, width))
        self.pos_embed: Tensor
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio=4.0, qkv_bias=True) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.pred = nn.Linear(width, patch_values)

    def forward(self, codes: Tensor, ids_restore: Tensor) -> Tensor:
        """Predict all patches.

        Args:
            codes: (N, 1 + K, D), class token first.
            ids_restore: (N, L), the place of each patch in [visible; hidden].

        Returns:
            (N, L, P); with a relation on the blocks, (N + M, L, P).
        """
        tokens = self._whole(self.embed(codes), ids_restore) + self.pos_embed
        with quick_attention(self.blocks):
            tokens = self.blocks(tokens)
        prediction: Tensor = self.pred(self.norm(tokens[:, 1:]))
        return prediction

    def hidden(self, codes: Tensor, ids_keep: Tensor, ids_hidden: Tensor) -> Tensor:
        """Predict the hidden patches only: what `forward` gives for them, for less.

        Attention does not care for the order of its tokens, so the visible ones stay in front and nothing is sorted.

        Args:
            codes: (N, 1 + K, D), class token first.
            ids_keep: (N, K), the visible patches.
            ids_hidden: (N, L - K), the hidden ones.

        Returns:
            (N, L - K, P), in the order of `ids_hidden`.

        Raises:
            ModelError: a relation is attached to the decoder; it would relate patches of different places.
        """
        if any(hasattr(hook, "each_position_alone") for part in self.modules() for hook in hooks_of(part)):
            raise ModelError(
                "hidden_only keeps the patches of each image in another order, and a relation on the decoder would "
                "relate different places; call the autoencoder without hidden_only."
            )
        count, last = ids_hidden.shape[1], self.blocks[-1]

        def hidden_ones(tokens: Tensor) -> Tensor:
            return tokens[:, -count:]

        visible = self.embed(codes)
        masked = self.mask_token.to(visible.dtype).expand(len(codes), count, -1)
        places = torch.cat([ids_keep.new_zeros(len(codes), 1), ids_keep + 1, ids_hidden + 1], dim=1)
        tokens = torch.cat([visible, masked], dim=1) + functional.embedding(places, self.pos_embed[0])
        with quick_attention(self.blocks):
            for block in self.blocks[:-1]:
                tokens = block(tokens)
            partial = can_be_partial(last)
            tokens = block_for(last, tokens, hidden_ones) if partial else hidden_ones(last(tokens))
        prediction: Tensor = self.pred(self.norm(tokens))
        return prediction

    def _whole(self, visible: Tensor, ids_restore: Tensor) -> Tensor:
        """Put (N, 1 + K, width) and the mask token in the order of the image: (N, 1 + L, width)."""
        n, length, _ = visible.shape
        if n != ids_restore.shape[0]:
            raise ModelError(
                f"the encoder gave {n} rows for {ids_restore.shape[0]} images: a relation is attached inside it. In a "
                'masked autoencoder it belongs to the decoder, for example BatchFormerV2(at="decoder.blocks.0").'
            )
        # All hidden places point at one copy of the mask token, behind the visible ones.
        source = torch.cat([visible, self.mask_token.to(visible.dtype).expand(n, -1, -1)], dim=1)
        ids = (ids_restore + 1).clamp(max=length)
        return select(source, torch.cat([ids.new_zeros(n, 1), ids], dim=1))


def _check_sizes(width: int, depth: int, heads: int) -> None:
    if depth < 1:
        raise ConfigError(f"the decoder needs at least one block, not {depth}; set decoder_depth.")
    if heads < 1 or width % heads:
        raise ConfigError(
            f"{heads} heads do not divide a decoder {width} channels wide; change decoder_heads or decoder_width."
        )
