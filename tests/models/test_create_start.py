"""What a classifier gets from its ViT, and where it starts: pooling, first weights, first bias."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from relatum.errors import ModelError
from relatum.models import create_model
from relatum.objectives import BCE

VIT = {"img_size": 16, "depth": 2, "patch_size": 8, "embed_dim": 32, "num_heads": 2}


def vit(classes=5, name="vit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    return create_model(name, classes, **VIT, **options)


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_pooling_written_out(pool):
    model = vit(pool=pool).eval()
    nn.init.normal_(model.pos_embed)
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    norm = model.fc_norm if pool == "avg" else model.norm
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    with torch.no_grad():
        patches = model.patch_embed.proj(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([model.cls_token.expand(3, -1, -1), patches], 1) + model.pos_embed
        for block in model.blocks:
            tokens = block(tokens)
        pooled = tokens[:, 1:].mean(1) if pool == "avg" else tokens[:, 0]
        normed = nn.functional.layer_norm(pooled, (32,), norm.weight, norm.bias, 1e-6)
        expected = normed @ model.head.weight.T + model.head.bias
        assert torch.allclose(model(images), expected, atol=1e-5)
        other = vit(pool="token" if pool == "avg" else "avg").eval()
        assert not torch.allclose(other(images), expected, atol=1e-2)


def test_avg_moves_the_final_norm_behind_the_pooling():
    avg, token, default = (vit(pool=pool) for pool in ("avg", "token", "default"))
    assert isinstance(avg.norm, nn.Identity) and isinstance(avg.fc_norm, nn.LayerNorm)
    assert isinstance(token.norm, nn.LayerNorm) and isinstance(token.fc_norm, nn.Identity)
    assert default.global_pool == "token" and default.state_dict().keys() == token.state_dict().keys()
    assert create_model("vit-pico-p8", 3, pool="avg").global_pool == "avg"


@pytest.mark.parametrize(("size", "parameters"), [(224, 86_567_656), (384, 86_859_496)])
def test_parameters_of_the_published_fine_tuned_models(size, parameters):
    with torch.device("meta"):
        model = create_model("vit_base_patch16_224", 1000, pool="avg", img_size=size)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


@pytest.mark.parametrize("pool", ["avg", "token"])
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet20-cifar", "resnet10", "swin_tiny_patch4_window7_224", "beit_base_patch16_224"]
)
def test_pool_is_for_vision_transformers(name, pool):
    with torch.device("meta"), pytest.raises(ModelError, match=rf"'{name}' does not take pool '{pool}'.*at default"):
        create_model(name, 3, pool=pool)


def test_vits_that_cannot_pool_that_way_say_so():
    with torch.device("meta"):
        with pytest.raises(ModelError, match="pool 'avg'"):
            create_model("deit_tiny_distilled_patch16_224", 3, pool="avg")  # one head on each of two tokens
        with pytest.raises(ModelError, match="pool 'token'"):
            create_model("vit_base_patch16_gap_224", 3, pool="token")
        with pytest.raises(ModelError, match="widht"):  # the real fault, not the pool
            create_model("vit_tiny_patch16_224", 3, pool="avg", widht=3)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_head_std_draws_the_weights_of_every_head(name):
    fresh, model = vit(100, name), vit(100, name, head_std=2e-5)
    heads = [model.head, model.head_dist] if "distilled" in name else [model.head]
    assert not torch.equal(fresh.head.weight, model.head.weight)
    for head in heads:
        assert head.weight.std().item() == pytest.approx(2e-5, rel=0.1)
        assert abs(head.weight.mean().item()) < 2e-6
        assert torch.equal(head.bias, torch.zeros(100))
    wide = vit(1000, head_std=1.5).head.weight
    assert 1.99 < wide.abs().max() <= 2.0  # cut at two
    assert torch.equal(vit(3, head_std=0.0).head.weight, torch.zeros(3, 32))
    # Everything before the head is drawn first, hence the same.
    assert torch.equal(fresh.blocks[1].mlp.fc2.weight, model.blocks[1].mlp.fc2.weight)


def test_head_std_sets_a_bias_that_was_not_zero():
    torch.manual_seed(0)
    assert create_model("resnet20-cifar", 10).fc.bias.abs().max() > 0
    model = create_model("resnet20-cifar", 10, head_std=0.01)
    assert torch.equal(model.fc.bias, torch.zeros(10))


@pytest.mark.parametrize("std", [-1.0, 2e-5])
def test_head_bias_is_the_log_odds_of_one_class_in_many(std):
    model = vit(10, head_std=std, head_bias="log(C-1)")
    assert model.head.bias.sigmoid().tolist() == pytest.approx([0.1] * 10, rel=1e-6)
    assert torch.allclose(model.head.bias, BCE().matching_head_bias(10))
    assert model.head.bias[0].item() == pytest.approx(-math.log(9))
    assert (model.head.weight.abs().max() < 1e-3) == (std > 0)
    two = vit(4, "deit_tiny_distilled_patch16_224", head_bias="log(C-1)")
    assert torch.equal(two.head_dist.bias, two.head.bias) and two.head.bias[0].item() == pytest.approx(-math.log(3))


def test_loaded_weights_come_after_the_start_of_the_head(tmp_path):
    source = vit(head_bias="log(C-1)")
    torch.save(source.state_dict(), tmp_path / "w.pth")
    assert vit(head_std=0.0).head.weight.abs().sum() == 0
    loaded = vit(head_std=0.0, weights=str(tmp_path / "w.pth"))
    assert torch.equal(loaded.head.weight, source.head.weight) and torch.equal(loaded.head.bias, source.head.bias)


@pytest.mark.parametrize(
    ("classes", "options", "words"),
    [
        (3, {"head": "cosine", "head_std": 2e-5}, "head_std at -1.*linear"),
        (3, {"head": "cosine", "head_bias": "log(C-1)"}, "no bias.*linear"),
        (3, {"head_std": -0.5}, "standard deviation"),
        (3, {"head_std": float("nan")}, "standard deviation"),
        (3, {"head_bias": "log"}, r"log\(C-1\)"),
        (1, {"head_bias": "log(C-1)"}, "two classes"),
        (3, {"pool": "mean"}, "valid: avg, default, token"),
        (3, {"pool": "avg", "global_pool": "token"}, "pool alone"),
        (3, {"weights": "a.pth", "encoder": "b.pth"}, "one of them"),
    ],
)
def test_errors_of_the_start(classes, options, words):
    with pytest.raises(ModelError, match=words):
        vit(classes, **options)


def test_a_classifier_that_is_not_linear_is_refused():
    with torch.device("meta"), pytest.raises(ModelError, match=r"'classifier' is Conv2d.*head_std at -1"):
        create_model("dpn68", 3, head_std=0.1)
