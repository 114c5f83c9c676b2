"""Padded positions: they neither attend nor are attended to."""

import pytest
import torch
from test_attention import reference_layer
from test_stable_layer import reference as reference_stable
from torch import nn

from relatum import BatchAttention, BatchFormerV2, attach
from relatum.errors import ModelError
from relatum.relation.padding import fit_padding, from_argument

WIDTH, HEADS, CLASSES = 8, 4, 3
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def reference(attention, x, padding):
    """At each position, the samples that have content there relate as if the others did not exist."""
    out = x.clone()
    for layer in attention.layers:
        for position in range(x.shape[1]):
            content = [n for n in range(len(x)) if not padding[n, position]]
            if not content:
                continue
            here = out[content, position]
            if hasattr(layer, "self_attn"):
                here = reference_layer(layer, here, HEADS)
            else:
                here = reference_stable(layer, here.unsqueeze(1)).squeeze(1)
            out[content, position] = here
    return out


def attention_and_input(variant, layers=1):
    attention = BatchAttention(WIDTH, HEADS, dropout=0.0, layers=layers, variant=variant).double()
    padding = torch.zeros(5, 4, dtype=torch.bool)
    padding[3:, 1], padding[1:, 2], padding[:, 3] = True, True, True
    return attention, torch.randn(5, 4, WIDTH, dtype=torch.float64), padding


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_equals_the_written_out_definition(variant, layers):
    attention, x, padding = attention_and_input(variant, layers)
    with torch.no_grad():
        out = attention(x, None, padding)
        assert not torch.allclose(out, attention(x)), "the mask matters"
        torch.testing.assert_close(out, reference(attention, x, padding), rtol=1e-9, atol=1e-9)
        rows = torch.tensor([4, 0])
        if layers == 1:
            torch.testing.assert_close(attention(x, rows, padding), out[rows], rtol=1e-9, atol=1e-9)
        maps = attention(x.unflatten(1, (2, 2)), None, padding.unflatten(1, (2, 2)))
        torch.testing.assert_close(maps.flatten(1, 2), out, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_padded_positions_come_out_unchanged_and_change_nothing(variant):
    attention, x, padding = attention_and_input(variant)
    out = attention(x, None, padding)
    assert torch.equal(out[padding], x[padding]) and out.isfinite().all()
    assert not torch.allclose(out[~padding], x[~padding])
    other = torch.where(padding.unsqueeze(-1), 100 * torch.randn_like(x), x)
    assert not torch.allclose(attention(other)[~padding], attention(x)[~padding]), "unmasked they would matter"
    torch.testing.assert_close(attention(other, None, padding)[~padding], out[~padding], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_gradients_stay_finite_where_everyone_is_padded(variant):
    attention, x, padding = attention_and_input(variant)
    x.requires_grad_(True)
    attention(x, None, padding).square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in attention.parameters())
    torch.testing.assert_close(x.grad[:, 3], 2 * x.detach()[:, 3])  # they pass straight through


class Encoder(nn.Module):
    """A home-made encoder that takes its padding mask as torch's layers do."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(6, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, mask=None):
        tokens = self.embed(x) if self.batch_first else self.embed(x).transpose(0, 1)
        tokens = self.encoder(tokens, src_key_padding_mask=mask)
        return self.head(tokens if self.batch_first else tokens.transpose(0, 1))


def masked_input():
    padding = torch.zeros(5, 4, dtype=torch.bool)
    padding[1, 3:], padding[2, 2:] = True, True
    return torch.randn(5, 4, 6), padding


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_mask_read_from_the_layers_and_a_mask_given_by_hand_agree(batch_first, fraction):
    x, mask = masked_input()
    common = {"at": "all", "inputs": ("x", "mask"), "prefix": ("embed",), "dropout": 0.0, "related_fraction": fraction}
    common["batch_dim"] = 0 if batch_first else 1
    model = Encoder(batch_first).train()
    never = model.state_dict()

    def run(by_hand=False, **options):
        torch.manual_seed(3)
        relation = attach(model, BatchFormerV2(**common, **options))
        torch.manual_seed(4)
        if by_hand:
            with relation.padding(mask):
                out = model(x, mask)
        else:
            out = model(x, mask)
        plain, related = relation.split(out)
        chosen = relation.chosen
        relation.detach()
        return plain, related, slice(None) if chosen is None else chosen

    plain, masked, chosen = run(padding="src_key_padding_mask")
    content = ~mask[chosen]
    assert list(model.state_dict()) == list(never)
    torch.testing.assert_close(plain, model(x, mask), rtol=0, atol=1e-6)
    torch.testing.assert_close(run(by_hand=True)[1][content], masked[content])
    assert not torch.allclose(run()[1][content], masked[content], atol=1e-5), "without a mask padding is attended to"


def test_what_is_padded_reaches_nobody_elses_output():
    x, mask = masked_input()
    model = Encoder().train()
    relation = attach(model, BatchFormerV2(at="last", dropout=0.0, padding="src_key_padding_mask"))
    x.requires_grad_(True)
    related = relation.split(model(x, mask))[1]
    (grad,) = torch.autograd.grad(related[0].square().sum(), x)
    assert all(grad[n][~mask[n]].any() for n in range(5)) and not grad[mask].any()


def test_a_mask_leaves_with_its_block():
    model, (x, mask) = Encoder().train(), masked_input()
    relation = attach(model, BatchFormerV2(at="last", dropout=0.0))
    before = model(x)
    with relation.padding(mask):
        assert not torch.allclose(model(x), before)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("name", "value", "padded"),
    [
        ("src_key_padding_mask", torch.tensor([[False, True]]), [[False, True]]),
        ("key_padding_mask", torch.tensor([[0.0, -torch.inf]]), [[False, True]]),
        ("attention_mask", torch.tensor([[1, 0]]), [[False, True]]),
        ("attention_mask", torch.tensor([[True, False]]), [[False, True]]),
        ("attention_mask", torch.tensor([[[[0.0, -1e9], [0.0, -1e9]]]]), [[False, True]]),
    ],
)
def test_masks_of_all_conventions_become_one(name, value, padded):
    assert from_argument(name, value).tolist() == padded
    assert from_argument(name, None) is None


def test_masks_are_brought_to_the_positions_of_a_site():
    image = torch.zeros(2, 8, 8, dtype=torch.bool)
    image[0, :, 4:] = True
    assert fit_padding(image, torch.Size([2, 2, 2])).tolist() == [[[False, True]] * 2, [[False, False]] * 2]
    tokens = torch.tensor([[False, False, True, True]])
    assert fit_padding(tokens, torch.Size([1, 3]), slice(1, None)).tolist() == [[False, True, True]]
    assert fit_padding(tokens, torch.Size([1, 2, 2])).tolist() == [[[False, False], [True, True]]]
    with pytest.raises(ModelError, match="does not fit"):
        fit_padding(tokens, torch.Size([1, 5]))
