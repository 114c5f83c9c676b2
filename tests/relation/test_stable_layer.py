"""The stable layer against the same mathematics written sample by sample, head by head."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from relatum import BatchAttention
from relatum.relation.stable import BRANCH_SCALE, StableLayer

WIDTH, HEADS = 8, 4


def normed(x, layer=None, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    return scaled if layer is None else scaled * layer.weight + layer.bias


def unit(x):
    """Root mean square 1, as a head's query or key."""
    return x / torch.sqrt((x**2).mean() + torch.finfo(x.dtype).eps)


def affine(x, layer):
    return x @ layer.weight.T + layer.bias


def reference(layer, x, heads=HEADS):
    """x (N, L, C) -> (N, L, C), with loops over positions, heads and pairs of samples."""
    n, positions, c = x.shape
    d = c // heads
    out = torch.empty_like(x)
    for p in range(positions):
        seen = normed(x[:, p], layer.norm)
        query, key_value = affine(seen, layer.query), affine(seen, layer.key_value)
        key, value = key_value[:, :d], key_value[:, d:]
        mixed = torch.zeros(n, c, dtype=x.dtype)
        for i in range(n):
            for h in range(heads):
                part = slice(h * d, (h + 1) * d)
                scores = [float(unit(query[i, part]) @ unit(key[j])) / math.sqrt(d) for j in range(n)]
                share = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
                mixed[i, part] = sum(share[j] * value[j] for j in range(n))
        y = x[:, p] + layer.scale * affine(mixed, layer.out)
        if layer.feed_forward is not None:
            norm, first, _, second = layer.feed_forward
            y = y + layer.feed_scale * affine(affine(normed(y, norm), first).clamp(min=0), second)
        out[:, p] = y
    return out


def layer_and_input(n=5, positions=3, hidden=12):
    """Random weights everywhere: scales and norms that start at a constant would hide a missing factor."""
    layer = StableLayer(WIDTH, HEADS, hidden, dropout=0.5).double().eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    return layer, 3 * torch.randn(n, positions, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("hidden", [None, 12])
def test_equals_the_written_out_layer(hidden):
    layer, x = layer_and_input(hidden=hidden)
    assert (layer.feed_forward is None) == (hidden is None)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), reference(layer, x), rtol=1e-9, atol=1e-9)


def test_gradients_are_right():
    layer, x = layer_and_input(3, 2)
    assert torch.autograd.gradcheck(layer, x.requires_grad_(True))


def test_some_rows_are_the_rows_of_the_full_result():
    layer, x = layer_and_input()
    rows = torch.tensor([3, 0])
    torch.testing.assert_close(layer(x, rows), layer(x)[rows], rtol=1e-12, atol=1e-12)


def test_ignored_samples_are_as_if_they_were_not_there():
    layer, x = layer_and_input()
    ignored = torch.zeros(3, 5, dtype=torch.bool)
    ignored[:, 4] = True
    assert not torch.allclose(layer(x)[:4], layer(x[:4])), "the fifth sample does matter"
    torch.testing.assert_close(layer(x, None, ignored)[:4], layer(x[:4]), rtol=1e-12, atol=1e-12)


def test_permuting_samples_or_positions_permutes_the_output():
    layer, x = layer_and_input(7, 4)
    samples, positions = torch.randperm(7), torch.randperm(4)
    torch.testing.assert_close(layer(x[samples][:, positions]), layer(x)[samples][:, positions], rtol=1e-9, atol=1e-9)


def test_one_position_is_the_image_level_relation():
    attention = BatchAttention(WIDTH, HEADS, variant="stable").double().eval()
    x = torch.randn(5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(attention(x.unsqueeze(1)).squeeze(1), attention(x), rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(attention(x), reference(attention.layers[0], x.unsqueeze(1)).squeeze(1))


def test_two_layers_with_rows_let_the_second_attend_to_what_the_first_made():
    attention = BatchAttention(WIDTH, HEADS, layers=2, variant="stable").double().eval()
    first, second = attention.layers
    x, rows = torch.randn(5, 3, WIDTH, dtype=torch.float64), torch.tensor([4, 1, 2])
    with torch.no_grad():
        between = x.clone()
        between[rows] = reference(first, x)[rows]
        expected = reference(second, between)[rows]
        torch.testing.assert_close(attention(x, rows), expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(expected, attention(x)[rows], rtol=1e-9), "the other two stay plain in between"


@pytest.mark.parametrize("size", [1.0, 1e4, 1e-4])
def test_logits_never_exceed_the_root_of_the_head_width(monkeypatch, size):
    layer, x = layer_and_input()
    seen = []

    def attend(query, key, value, attn_mask=None):
        seen.append(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]))
        return torch.zeros_like(query)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    with torch.no_grad():
        layer.query.weight.mul_(size)
        layer.key_value.weight.mul_(size)
        layer(x)
    width = WIDTH // HEADS
    assert seen[0].shape == (3, 1, 5 * HEADS, 5), "the heads are queries of one key head"
    assert 0 < seen[0].abs().max() <= math.sqrt(width) + 1e-9


def test_low_precision_is_kept_out_of_the_softmax(monkeypatch):
    layer, x = layer_and_input()
    layer, x, seen = layer.bfloat16(), x.bfloat16(), []
    original = functional.scaled_dot_product_attention

    def attend(query, key, value, attn_mask=None):
        seen.append((query.dtype, key.dtype, value.dtype))
        return original(query, key, value, attn_mask=attn_mask)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert seen == [(torch.float32,) * 3] and out.isfinite().all()
    assert layer(x).dtype == torch.bfloat16


def test_it_begins_as_a_small_step_away_from_the_plain_features():
    layer = StableLayer(WIDTH, HEADS, WIDTH, dropout=0.0)
    x = torch.randn(6, 3, WIDTH, requires_grad=True)
    assert torch.equal(layer.scale, torch.full((WIDTH,), BRANCH_SCALE)) and torch.equal(layer.scale, layer.feed_scale)
    step = (layer(x) - x).abs().max()
    assert 0 < step < 0.5
    (layer(x) @ torch.randn(WIDTH)).sum().backward()
    assert all(p.grad.any() for p in layer.parameters()), "not zero: every weight learns from the first step"


@pytest.mark.parametrize("branch", ["scale", "feed_scale"])
def test_dropout_drops_channels_of_a_sample_at_all_its_positions(branch):
    layer, x = layer_and_input(8, 3)
    nn.init.zeros_(getattr(layer, "feed_scale" if branch == "scale" else "scale"))
    whole = layer(x) - x
    assert whole.all() and torch.equal(layer(x), layer(x)), "nothing is dropped in evaluation mode"
    step = layer.train()(x) - x
    kept = step != 0
    assert torch.equal(kept, kept[:, :1].expand_as(kept)), "the same at all positions"
    assert len({tuple(row.tolist()) for row in kept[:, 0]}) > 1, "but not for all samples"
    torch.testing.assert_close(step[kept], 2 * whole[kept])  # what is left makes up for the dropped half
    layer.dropout.p = 1.0
    assert torch.equal(layer(x), x)
