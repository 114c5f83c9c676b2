"""The choice between timm's fused and plain attention."""

from __future__ import annotations

import pytest
import torch

from relatum.models.mae import MaskedAutoencoder
from relatum.models.mae.attention import quick_attention
from relatum.models.small_vit import small_vit


def fused(blocks):
    return [block.attn.fused_attn for block in blocks]


def vit():
    torch.manual_seed(0)
    return small_vit("vit-pico-p8", 1)


@pytest.mark.parametrize(
    ("length", "dtype", "plain"),
    [(64, torch.float32, True), (65, torch.float32, False), (300, torch.bfloat16, True), (301, torch.bfloat16, False)],
)
def test_short_sequences_take_the_plain_way_and_the_flags_come_back(length, dtype, plain):
    blocks = vit().blocks
    assert all(fused(blocks))
    with quick_attention(blocks, torch.empty(1, length, 64, dtype=dtype)):
        assert fused(blocks) == [not plain] * 6
    assert all(fused(blocks))


def test_the_precision_of_autocast_counts_not_that_of_the_tokens():
    blocks = vit().blocks
    with torch.autocast("cpu", dtype=torch.bfloat16), quick_attention(blocks, torch.empty(1, 100, 64)):
        assert not any(fused(blocks))


def test_other_devices_keep_the_fused_way():
    blocks = vit().blocks
    with quick_attention(blocks, torch.empty(1, 5, 64, device="meta")):
        assert all(fused(blocks))


def test_what_was_not_fused_stays_so_and_an_error_leaves_no_trace():
    blocks = vit().blocks
    blocks[2].attn.fused_attn = False
    with pytest.raises(RuntimeError, match="inside"), quick_attention(blocks, torch.empty(1, 5, 64)):
        assert not any(fused(blocks))
        raise RuntimeError("inside")
    assert fused(blocks) == [True, True, False, True, True, True]


def test_both_ways_give_the_same_gradients():
    torch.manual_seed(0)
    model, images, noise = MaskedAutoencoder(vit(), 32, 2, 2), torch.randn(3, 3, 32, 32), torch.rand(3, 16)
    seen = []
    model.encoder.blocks[0].attn.register_forward_hook(lambda attn, *_: seen.append(attn.fused_attn))
    gradients = []
    for switched in (True, False):
        model.zero_grad()
        if not switched:  # float64 has no entry in the table: the fused way is taken
            model, images, noise = model.double(), images.double(), noise.double()
        model(images, noise=noise).loss.backward()
        gradients.append([p.grad.double() for p in model.parameters() if p.requires_grad])
    assert seen == [False, True]
    for plain, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, reference, rtol=1e-4, atol=1e-6)
