"""The last block for the tokens that are read: the numbers of the whole block, for less; left alone where watched."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import timm
import torch
from timm.layers import LayerNorm
from timm.models.vision_transformer import Block
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import relatum
from relatum.models.last_block import block_for, can_be_partial, class_token_only
from relatum.models.quick import quickly

BLOCKS = {
    "usual": {"qkv_bias": True},
    "no bias": {},
    "normalised": {"qkv_bias": True, "qk_norm": True, "scale_attn_norm": True, "init_values": 0.5},
}
READS = {"class token": lambda t: t[:, :1], "the last three": lambda t: t[:, -3:], "all": lambda t: t}


def vit(**kwargs):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **kwargs}).double()


def images(n=3):
    return torch.randn(n, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def counted(model, batch):
    with FlopCounterMode(display=False) as counter:
        model(batch)
    return counter.get_total_flops()


def tokens_left(model, batch, context):
    """How many tokens reach the normalisation behind the last block, which is no part of it."""
    seen = []
    with model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1])), context(model):
        model(batch)
    return seen[0]


@pytest.mark.parametrize("options", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_it_gives_what_the_whole_block_gives_for_the_tokens_that_are_read(options, read):
    torch.manual_seed(0)
    block = Block(8, 2, norm_layer=LayerNorm, **options).double()
    for parameter in block.parameters():  # also the biases and scales, which start at 0 and 1
        nn.init.normal_(parameter)
    tokens = torch.randn(4, 6, 8, dtype=torch.float64, requires_grad=True)
    inputs, found = [tokens, *block.parameters()], []
    for made in (read(block(tokens)), block_for(block, tokens, read)):
        chosen = torch.linspace(-1, 1, made.numel(), dtype=torch.float64).view_as(made)
        found.append([made, *torch.autograd.grad((made * chosen).sum(), inputs)])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-10, atol=1e-12)


def test_a_vit_gives_the_same_logits_and_gradients_for_fewer_multiplications():
    model, batch, found = vit(), images(), []
    whole = counted(model, batch)
    for context in (None, class_token_only):
        model.zero_grad()
        if context is None:
            logits = model(batch)
        else:
            with context(model):
                logits = model(batch)
                assert counted(model, batch) < 0.8 * whole  # ten twelfths of one block of three
        logits.logsumexp(1).sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_afterwards_it_is_as_before_also_after_an_error():
    model, batch = vit(), images()
    before = model(batch)
    with class_token_only(model):
        inside = model(batch)
        with pytest.raises(RuntimeError):
            model(batch[:, :2])
    assert not torch.equal(inside, before)  # rounding: another order of sums
    assert torch.equal(model(batch), before) and counted(model, batch) == counted(copy.deepcopy(model), batch)
    assert not model._forward_hooks and not model._forward_pre_hooks and "forward" not in vars(model.blocks[-1])


def test_only_calls_of_the_whole_vit_leave_tokens_out():
    model, batch = vit(), images()
    with class_token_only(model):
        model(batch)
        assert model.forward_features(batch).shape[1] == 17
    holder = nn.Sequential(model, nn.Linear(5, 2).double())
    assert tokens_left(model, batch, lambda _: class_token_only(holder)) == 1


@pytest.mark.parametrize("reason", ["hook", "pool", "no class token", "checkpoints", "kind", "mask"])
def test_what_needs_the_other_tokens_keeps_them(reason):
    options = {"pool": {"global_pool": "avg"}, "no class token": {"class_token": False, "global_pool": "avg"}}
    model, batch = vit(**options.get(reason, {})), images()
    if reason == "hook":
        model.blocks[-1].mlp.fc1.register_forward_hook(lambda *_: None)
    if reason == "checkpoints":
        model.set_grad_checkpointing()
    if reason == "kind":
        model.__class__ = type("Reader", (type(model),), {})
    if reason == "mask":
        with class_token_only(model):
            mask = torch.zeros(17, 17, dtype=torch.float64)
            assert model(batch, mask).shape == model(batch, attn_mask=mask).shape == (3, 5)
        return
    assert tokens_left(model, batch, class_token_only) == (16 if reason == "no class token" else 17)


def test_a_block_with_other_parts_is_left_alone():
    block = Block(8, 2)
    assert can_be_partial(block)
    block.attn.qkv = nn.Sequential(block.attn.qkv)
    assert not can_be_partial(block) and not can_be_partial(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"at": ("blocks.0",)}, 1),
        ({"at": "all"}, 1),
        ({"at": "all", "related_fraction": 0.5}, 1),
        ({"at": "last", "tokens": "patch"}, 17),  # of these none would be left
        ({"at": ("blocks.1", "blocks.2.attn"), "width": 32}, 17),  # inside the block
    ],
)
def test_a_relation_gives_the_same_streams_and_gradients(options, left):
    model, batch = vit(), images(8)
    relation = relatum.attach(model.train(), relatum.BatchFormerV2(heads=2, dropout=0.0, **options))
    model.double()
    assert tokens_left(model, batch, quickly) == left
    found = []
    for context in (nullcontext, quickly):
        model.zero_grad()
        torch.manual_seed(3)  # which samples are related
        with context(model):
            logits = model(batch)
        logits.logsumexp(1).square().sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-11)
    streams = relation.streams(logits)
    assert len(streams["related"]) == 8 * options.get("related_fraction", 1)
    if options.get("tokens") != "patch":
        assert not torch.allclose(relation.in_related(streams["plain"]), streams["related"])


def test_another_model_is_left_alone():
    model = relatum.create_model("resnet20-cifar", 3).eval()
    batch = torch.randn(2, 3, 32, 32)
    before = model(batch)
    with quickly(model):
        assert torch.equal(model(batch), before)
