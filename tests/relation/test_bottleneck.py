"""Relating in fewer dimensions: the definition in float64, what is refused, and what is left after detach."""

import copy

import pytest
import torch
from test_attention import reference_layer
from torch.nn import functional

from relatum import BatchAttention, BatchFormer, BatchFormerV2, attach, create_model
from relatum.errors import ConfigError


def narrow(dim=12, heads=2, bottleneck=4, **options):
    torch.manual_seed(0)
    return BatchAttention(dim, heads, dropout=0.0, bottleneck=bottleneck, **options).double()


def by_hand(layer, x, heads):
    inside = x @ layer.down.weight.T + layer.down.bias
    return x + reference_layer(layer.layer, inside, heads) @ layer.up.weight.T + layer.up.bias


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("gate", [False, True])
def test_equals_the_written_out_encoder_between_its_projections(layers, gate):
    attention, x = narrow(layers=layers, gate=gate), torch.randn(5, 12, dtype=torch.float64)
    expected = x
    with torch.no_grad():
        for layer in attention.layers:
            share = 0.1 if gate else 1.0
            expected = expected + share * (by_hand(layer, expected, 2) - expected)
        # The gates start at a float32 0.1.
        torch.testing.assert_close(attention(x), expected, rtol=1e-7 if gate else 1e-10, atol=1e-7 if gate else 1e-10)


@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_some_rows_are_those_of_the_whole_and_positions_stay_apart(variant):
    attention, x = narrow(variant=variant), torch.randn(6, 4, 12, dtype=torch.float64)
    rows = torch.tensor([5, 0, 3])
    torch.testing.assert_close(attention(x, rows), attention(x)[rows], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(attention(x)[:, 2], attention(x[:, 2]), rtol=1e-10, atol=1e-12)
    padding = torch.zeros(6, 4, dtype=torch.bool)
    padding[2, 1:] = True
    padded = attention(x, padding=padding)
    assert torch.equal(padded[2, 1:], x[2, 1:])
    without = attention(x[[0, 1, 3, 4, 5], 1])
    torch.testing.assert_close(padded[[0, 1, 3, 4, 5], 1], without, rtol=1e-10, atol=1e-12)


def test_gradients_are_right_and_reach_everything():
    attention = narrow(6)
    assert torch.autograd.gradcheck(attention, torch.randn(3, 6, dtype=torch.float64, requires_grad=True))
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    (attention(x)[0] @ torch.randn(6, dtype=torch.float64)).backward()
    assert all(p.grad.any() for p in attention.parameters())
    assert (x.grad[1:].abs().amax(1) > 1e-6).all(), "the samples attend to each other"


def test_widths_and_parameters_are_those_of_the_bottleneck():
    c, b = 64, 16
    attention = BatchAttention(c, bottleneck=b)
    assert sum(p.numel() for p in attention.parameters()) == 2 * c * b + c + b + 6 * b * b + 10 * b
    assert attention.layers[0].layer.linear1.out_features == b
    assert BatchAttention(c, bottleneck=b, hidden=40).layers[0].layer.linear1.out_features == 40
    assert [name for name in BatchAttention(c).state_dict() if "down" in name or "up" in name] == []


@pytest.mark.parametrize("width", [0, -4, 64, 100])
def test_a_bottleneck_that_is_none_is_refused(width):
    with pytest.raises(ConfigError, match=f"bottleneck of {width} must be above 0 and below the feature width 64"):
        BatchAttention(64, bottleneck=width)


def test_every_check_runs_before_any_change():
    model = create_model("resnet20-cifar", 5)
    keys = list(model.state_dict())
    for spec, words in [
        (BatchFormer(bottleneck=64), "below the feature width 64"),
        (BatchFormer(bottleneck=6), "4 attention heads do not divide the bottleneck 6; possible: 1, 2, 3, 6"),
        (BatchFormerV2(at=("layer1", "layer3"), bottleneck=32), "below the feature width 16"),
    ]:
        with pytest.raises(ConfigError, match=words):
            attach(model, spec)
        assert list(model.state_dict()) == keys
    attach(model, BatchFormer(bottleneck=8))


SPECS = [
    ("resnet20-cifar", BatchFormer(bottleneck=8)),
    ("resnet20-cifar", BatchFormer(bottleneck=8, gate=True, layers=2, related_fraction=0.5)),
    ("vit-nano-p8", BatchFormerV2(at="all", heads=2, bottleneck=8, share=True)),
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
    assert all(p.grad.any() for p in relation.module.parameters())
    assert any("relation.0.layers.0.down.weight" in key for key in model.state_dict())
    relation.detach()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(model.eval()(x), plain.eval()(x))
