import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum import BatchAttention
from relatum.errors import ConfigError


def reference_layer(layer, x, heads):
    """A post-norm encoder layer over the rows of x (N, C), written out sample by sample and head by head."""
    n, c = x.shape
    d = c // heads
    w, b = layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias
    q, k, v = (x @ w[i * c : (i + 1) * c].T + b[i * c : (i + 1) * c] for i in range(3))
    mixed = torch.zeros_like(x)
    for i in range(n):
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            scores = torch.tensor([float(q[i, part] @ k[j, part]) / math.sqrt(d) for j in range(n)], dtype=x.dtype)
            share = torch.exp(scores - scores.max())
            share = share / share.sum()
            mixed[i, part] = sum(share[j] * v[j, part] for j in range(n))
    attended = mixed @ layer.self_attn.out_proj.weight.T + layer.self_attn.out_proj.bias
    x = norm(x + attended, layer.norm1)
    hidden = torch.clamp(x @ layer.linear1.weight.T + layer.linear1.bias, min=0)
    return norm(x + hidden @ layer.linear2.weight.T + layer.linear2.bias, layer.norm2)


def norm(x, layer):
    centred = x - x.mean(1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(1, keepdim=True) + 1e-5) * layer.weight + layer.bias


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("heads", [1, 4])
def test_equals_the_written_out_encoder(layers, heads):
    attention = BatchAttention(8, heads, layers=layers).double().eval()
    x = torch.randn(5, 8, dtype=torch.float64)
    expected = x
    with torch.no_grad():
        for layer in attention.layers:
            expected = reference_layer(layer, expected, heads)
        torch.testing.assert_close(attention(x), expected, rtol=1e-10, atol=1e-10)


def test_gradients_are_right():
    attention = BatchAttention(4, heads=2, dropout=0.0).double()
    assert torch.autograd.gradcheck(attention, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("shape", [(6, 8), (6, 3, 8), (6, 2, 5, 8)])
def test_shape_is_kept_and_positions_are_independent(shape):
    attention = BatchAttention(8).double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    out = attention(x)
    assert out.shape == x.shape
    alone = x.flatten(1, -2)[:, 0] if x.ndim > 2 else x
    together = out.flatten(1, -2)[:, 0] if x.ndim > 2 else out
    torch.testing.assert_close(attention(alone), together, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 9), seed=st.integers(0, 1000))
def test_permuting_samples_permutes_the_output(n, seed):
    generator = torch.Generator().manual_seed(seed)
    attention = BatchAttention(8).double().eval()
    x = torch.randn(n, 8, dtype=torch.float64, generator=generator)
    order = torch.randperm(n, generator=generator)
    torch.testing.assert_close(attention(x[order]), attention(x)[order], rtol=1e-9, atol=1e-9)


def test_samples_really_attend_to_each_other():
    attention = BatchAttention(8).double().eval()
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    # A random projection: the sum over a LayerNorm output is constant and would hide everything.
    (attention(x)[0] @ torch.randn(8, dtype=torch.float64)).backward()
    assert (x.grad[1:].abs().amax(1) > 1e-6).all()


def test_parameter_count_is_that_of_the_paper():
    c = 64
    assert sum(p.numel() for p in BatchAttention(c).parameters()) == 6 * c * c + 10 * c


def test_hidden_width_and_dropout_have_their_effect():
    assert BatchAttention(8, hidden=20).layers[0].linear1.out_features == 20
    x = torch.randn(6, 8)
    noisy, quiet = BatchAttention(8, dropout=0.5), BatchAttention(8, dropout=0.0)
    assert not torch.equal(noisy(x), noisy(x))
    assert torch.equal(quiet(x), quiet(x))


@pytest.mark.parametrize(("dim", "heads", "layers"), [(10, 4, 1), (8, 0, 1), (8, 4, 0)])
def test_impossible_settings_are_refused(dim, heads, layers):
    with pytest.raises(ConfigError):
        BatchAttention(dim, heads, layers=layers)
