"""The choice between timm's fused and plain attention."""

from __future__ import annotations

import pytest
import torch

from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.models.attention import _choose, attend, quick_attention
from relatum.models.mae import MaskedAutoencoder
from relatum.models.small_vit import small_vit
from relatum.recipes import budget, classification
from relatum.train import Display, fit
from relatum.train.choose import Setting, measure


def fused(blocks):
    return [block.attn.fused_attn for block in blocks]


def vit():
    torch.manual_seed(0)
    return small_vit("vit-pico-p8", 1)


def ways(blocks, tokens):
    """Whether each block took the fused way."""
    seen = []
    handles = [block.attn.register_forward_hook(lambda attn, *_: seen.append(attn.fused_attn)) for block in blocks]
    with torch.no_grad():
        blocks(tokens)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    ("length", "dtype", "plain"),
    [(64, torch.float32, True), (65, torch.float32, False), (300, torch.bfloat16, True), (301, torch.bfloat16, False)],
)
def test_short_sequences_take_the_plain_way_and_the_flags_come_back(length, dtype, plain):
    blocks = vit().blocks.to(dtype)
    with quick_attention(blocks):
        assert ways(blocks, torch.ones(1, length, 64, dtype=dtype)) == [not plain] * 6
    assert all(fused(blocks)) and all(ways(blocks, torch.ones(1, length, 64, dtype=dtype)))


def test_each_call_is_judged_by_itself():
    blocks = vit().blocks
    with quick_attention(blocks):
        assert [ways(blocks, torch.ones(1, length, 64))[0] for length in (20, 100, 20)] == [False, True, False]


def test_the_precision_of_autocast_counts_not_that_of_the_tokens():
    blocks = vit().blocks
    with torch.autocast("cpu", dtype=torch.bfloat16), quick_attention(blocks):
        assert not any(ways(blocks, torch.ones(1, 100, 64)))


def test_other_devices_and_maps_of_other_shapes_keep_the_fused_way():
    blocks = vit().to("meta").blocks
    with quick_attention(blocks):
        assert all(ways(blocks, torch.empty(1, 5, 64, device="meta")))
        blocks[0].attn.fused_attn = False
        _choose(blocks[0].attn, (torch.ones(1, 64, 5, 5),))
        assert blocks[0].attn.fused_attn


def test_what_was_not_fused_stays_so_and_an_error_leaves_no_trace():
    blocks = vit().blocks
    blocks[2].attn.fused_attn = False
    with pytest.raises(RuntimeError, match="inside"), quick_attention(blocks), quick_attention(blocks):
        assert not any(ways(blocks, torch.ones(1, 5, 64)))
        raise RuntimeError("inside")
    assert fused(blocks) == [True, True, False, True, True, True]
    assert not any(block.attn._forward_pre_hooks for block in blocks)
    assert not any("forward" in vars(block.attn) for block in blocks)


DATA = DataConfig(kind="shapes", largest=10, batch_size=16)
CONFIG = RunConfig(data=DATA, model=ModelConfig(name="vit-pico-p8"), train=TrainConfig(epochs=1, max_steps=1))
CPU = torch.device("cpu")
# The loop, and the two that time its steps before it begins.
USERS = {
    "loop": lambda task, loaders: fit(task, loaders, CONFIG.train, display=Display(quiet=True)),
    "minutes": lambda task, loaders: budget._time(task, loaders, CONFIG),
    "precision": lambda task, loaders: measure(
        task, next(iter(loaders.train.epoch(0))), CPU, [Setting("float32", 1)], CONFIG.train
    ),
}


@pytest.mark.parametrize("user", USERS)
def test_steps_and_their_timing_leave_out_what_the_classifier_does_not_read(user):
    seen = {}
    task, loaders = classification.build(CONFIG)
    task.model.norm.register_forward_pre_hook(
        lambda norm, args: seen.setdefault(norm.training, set()).add(args[0].shape[1])
    )
    USERS[user](task.train(), loaders)
    assert seen[True] == {1} and (user == "precision" or seen[False] == {1})


@pytest.mark.parametrize("user", USERS)
def test_steps_are_taken_and_timed_the_quick_way(user):
    seen = {}
    task, loaders = classification.build(CONFIG)
    for block in task.model.blocks:
        block.attn.register_forward_hook(lambda attn, *_: seen.setdefault(attn.training, []).append(attn.fused_attn))
    USERS[user](task.train(), loaders)
    assert seen[True] and (user == "precision" or seen[False])
    assert not any(way for ways in seen.values() for way in ways)
    assert all(fused(task.model.blocks))


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


def softmaxes_in(call):
    """The precision of each softmax in a call."""
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") == "softmax":
                seen.append(args[0].dtype)
            return function(*args, **(kwargs or {}))

    with Watch():
        call()
    return seen


@pytest.mark.parametrize(
    ("length", "dtype", "inside"),
    [
        (15, "bfloat16", "bfloat16"),
        (16, "bfloat16", "float32"),
        (31, "bfloat16", "float32"),
        (32, "bfloat16", "bfloat16"),
        (17, "float32", "float32"),
    ],
)
def test_weights_of_rows_shorter_than_a_vector_are_computed_in_float32(length, dtype, inside):
    attention, dtype = vit().blocks[0].attn.to(getattr(torch, dtype)), getattr(torch, dtype)
    tokens = torch.randn(2, length, 64, dtype=dtype)
    with quick_attention(attention):
        assert softmaxes_in(lambda: attention(tokens)) == [getattr(torch, inside)]
        assert attention(tokens).dtype == dtype


def test_a_mask_of_the_attention_is_left_to_timm_and_counts():
    attention, tokens = vit().blocks[0].attn.bfloat16(), torch.randn(2, 17, 64).bfloat16()
    allowed = torch.ones(17, 17, dtype=torch.bool).tril()
    with torch.no_grad(), quick_attention(attention):
        for masked in ({"attn_mask": allowed}, {"is_causal": True}):
            assert softmaxes_in(lambda masked=masked: attention(tokens, **masked)) == [torch.bfloat16]
            torch.testing.assert_close(
                attention(tokens, **masked)[:, :1], attention(tokens[:, :1]), rtol=0.02, atol=0.02
            )


def plain_reference(attention, queries, tokens):
    """Attention of `queries` over `tokens` image by image and head by head."""
    width, heads = 64, attention.num_heads
    weight, bias = attention.qkv.weight, attention.qkv.bias
    q, k, v = (x @ weight[i * width : (i + 1) * width].T + bias[i * width : (i + 1) * width]
               for i, x in enumerate((queries, tokens, tokens)))  # fmt: skip
    made = torch.zeros_like(q)
    for image in range(len(tokens)):
        for part in torch.arange(width).chunk(heads):
            logits = q[image][:, part] @ k[image][:, part].T / len(part) ** 0.5
            exponents = (logits - logits.amax(1, keepdim=True)).exp()
            made[image][:, part] = exponents / exponents.sum(1, keepdim=True) @ v[image][:, part]
    return made @ attention.proj.weight.T + attention.proj.bias


@pytest.mark.parametrize("count", [17, 3])
def test_attend_is_attention_in_float64_and_near_it_in_bfloat16(count):
    attention, tokens = vit().blocks[0].attn.double(), torch.randn(2, 17, 64, dtype=torch.float64)
    torch.nn.init.normal_(attention.qkv.bias)
    queries = tokens if count == 17 else tokens[:, :count]
    with torch.no_grad():
        wanted = plain_reference(attention, queries, tokens)
        torch.testing.assert_close(attend(attention, queries, tokens), wanted, rtol=1e-10, atol=1e-12)
        low = attend(attention.bfloat16(), queries.bfloat16(), tokens.bfloat16())
    assert (low.double() - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_gradients_in_bfloat16_are_those_of_float32_up_to_its_rounding():
    attention, tokens = vit().blocks[0].attn, torch.randn(8, 17, 64)
    gradients = []
    for low in (False, True):
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low), quick_attention(attention):
            made = attention(tokens)
        (made.float() * torch.linspace(-1, 1, made.numel()).view(made.shape)).sum().backward()
        gradients.append(attention.qkv.weight.grad.clone())
    precise, low = gradients
    assert not torch.equal(low, precise)
    assert (low - precise).norm() < 0.02 * precise.norm()
