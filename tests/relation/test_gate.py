"""A gate between plain and related features: its definition in float64, its start, and what is left after detach."""

import copy

import pytest
import torch
from test_attention import reference_layer
from torch.nn import functional

from relatum import BatchAttention, BatchFormer, BatchFormerV2, attach, create_model
from relatum.errors import ConfigError


def gated(dim=8, heads=2, **options):
    torch.manual_seed(0)
    attention = BatchAttention(dim, heads, dropout=0.0, gate=True, **options).double()
    with torch.no_grad():
        attention.gates.copy_(torch.linspace(0.3, 1.7, len(attention.gates)))
    return attention


@pytest.mark.parametrize("layers", [1, 3])
def test_equals_the_written_out_encoder_behind_its_gates(layers):
    attention, x = gated(layers=layers), torch.randn(5, 8, dtype=torch.float64)
    expected = x
    with torch.no_grad():
        for gate, layer in zip(attention.gates.tolist(), attention.layers, strict=True):
            expected = expected + gate * (reference_layer(layer, expected, 2) - expected)
        torch.testing.assert_close(attention(x), expected, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(attention(x), reference_layer(attention.layers[0], x, 2))


def test_some_rows_are_those_of_the_whole_and_padding_stays_as_it_was():
    attention, x, rows = gated(), torch.randn(6, 4, 8, dtype=torch.float64), torch.tensor([4, 1])
    torch.testing.assert_close(attention(x, rows), attention(x)[rows], rtol=1e-10, atol=1e-12)
    padding = torch.zeros(6, 4, dtype=torch.bool)
    padding[2, 1:] = True
    assert torch.equal(attention(x, padding=padding)[2, 1:], x[2, 1:])


def test_closed_it_gives_the_plain_features_and_open_the_related_ones():
    attention, x = gated(), torch.randn(5, 8, dtype=torch.float64)
    related = attention.layers[0](x.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        attention.gates.fill_(0.0)
        assert torch.equal(attention(x), x)
        attention.gates.fill_(1.0)
        torch.testing.assert_close(attention(x), related, rtol=1e-12, atol=1e-12)


def test_gradients_are_right():
    attention = gated(4)
    assert torch.autograd.gradcheck(attention, torch.randn(3, 4, dtype=torch.float64, requires_grad=True))
    x, r = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    (attention(x) @ r).sum().backward()
    by_hand = ((attention.layers[0](x.unsqueeze(1)).squeeze(1) - x) @ r).sum()
    torch.testing.assert_close(attention.gates.grad, by_hand.reshape(1))


def test_it_starts_small_and_every_weight_gets_a_gradient():
    torch.manual_seed(0)
    attention = BatchAttention(8, gate=True, layers=2)
    torch.testing.assert_close(attention.gates.detach(), torch.tensor([0.1, 0.1]))
    (attention(torch.randn(9, 8)) @ torch.randn(8)).sum().backward()
    assert all(p.grad.any() for p in attention.parameters())
    attention.zero_grad()
    with torch.no_grad():
        attention.gates.zero_()
    (attention(torch.randn(9, 8)) @ torch.randn(8)).sum().backward()
    assert [name for name, p in attention.named_parameters() if p.grad.any()] == ["gates"], "why it is not 0"


def test_without_it_nothing_is_there():
    plain = BatchAttention(8)
    assert not any("gate" in name for name in plain.state_dict())
    assert sum(p.numel() for p in BatchAttention(8, gate=True, layers=3).parameters()) == 3 + 3 * (6 * 64 + 80)
    with pytest.raises(ConfigError, match="stable"):
        BatchAttention(8, gate=True, variant="stable")
    for spec in (BatchFormer, BatchFormerV2):
        with pytest.raises(ConfigError, match="stable"):
            spec(gate=True, variant="stable")


SPECS = [
    ("resnet20-cifar", BatchFormer(gate=True)),
    ("resnet20-cifar", BatchFormer(gate=True, layers=2, related_fraction=0.5)),
    ("vit-nano-p8", BatchFormerV2(at="all", variant="paper", gate=True)),
    ("vit-nano-p8", BatchFormerV2(at="all", variant="paper", gate=True, share=True)),
]


@pytest.mark.parametrize(("name", "spec"), SPECS)
def test_attached_it_trains_and_detaches_exactly(name, spec):
    torch.manual_seed(0)
    plain = create_model(name, 5)
    model, x = copy.deepcopy(plain), torch.randn(8, 3, 32, 32)
    relation = attach(model, spec)
    logits = model.train()(x)
    first, second = relation.split(logits)
    assert torch.equal(first, plain.train()(x))
    assert not torch.allclose(second, relation.in_related(first))
    functional.cross_entropy(logits, relation.targets(torch.arange(8) % 5)).backward()
    relation.check_gradients()
    assert all(attention.gates.grad.all() for attention in relation.module)
    assert any("gates" in key for key in model.state_dict())
    relation.detach()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(model.eval()(x), plain.eval()(x))
