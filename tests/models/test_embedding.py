"""Features of a model: what enters its classifier, or its tokens pooled another way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relatum.errors import ModelError
from relatum.models import Embedding, create_model
from relatum.models.mae import MaskedAutoencoder
from relatum.relation import BatchFormer, BatchFormerV2, attach

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def vit(pool="default", **options):
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16_224", 5, pool=pool, **SIZES, **options).eval()
    for norm in (model.norm, model.fc_norm):
        if isinstance(norm, nn.LayerNorm):
            nn.init.normal_(norm.weight)
    return model


def pooled_by_hand(model, pool):
    """The tokens after the blocks, pooled, and normalised where the model does it."""
    seen = []
    handle = model.blocks.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(IMAGES)
        handle.remove()
        tokens = model.norm(seen[0])
        return model.fc_norm(tokens[:, 1:].mean(1) if pool == "avg" else tokens[:, 0])


@pytest.mark.parametrize("build", [lambda: create_model("resnet20-cifar", 5), vit, lambda: vit("avg")])
def test_the_features_of_a_classifier_are_what_it_classifies(build):
    model = build().eval()
    with torch.no_grad():
        features, logits = Embedding(model)(IMAGES), model(IMAGES)
        head = model.get_classifier()
        assert features.shape == (8, head.in_features)
        assert torch.allclose(head(features), logits, atol=1e-6)
        # Without a classifier the same model answers with the same features.
        model.reset_classifier(0)
        assert torch.equal(Embedding(model)(IMAGES), features)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("headless", [False, True])
@pytest.mark.parametrize("of_model", ["token", "avg"])
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_tokens_can_be_pooled_another_way(of_model, pool, headless):
    model = vit(of_model)
    if headless:
        model.reset_classifier(0)
    with torch.no_grad():
        features, default = Embedding(model, pool)(IMAGES), Embedding(model)(IMAGES)
    assert features.shape == (8, 32)
    assert torch.allclose(features, pooled_by_hand(model, pool), atol=1e-6)
    assert torch.allclose(features, default, atol=1e-6) == (pool == of_model)


@pytest.mark.parametrize("pool", ["default", "avg", "token"])
@pytest.mark.parametrize("spec", [BatchFormer(dropout=0.0), BatchFormerV2(at="blocks.0", dropout=0.0)])
def test_a_relation_leaves_the_features_plain_in_evaluation(spec, pool):
    model = vit()
    with torch.no_grad():
        plain = Embedding(model, pool)(IMAGES)
        attach(model, spec)
        embedding = Embedding(model, pool).train()
        trained = Embedding(model)(IMAGES)
        assert len(trained) == 16 and not torch.allclose(trained[8:], trained[:8], atol=1e-3)  # the relation does act
        embedding.eval()
        assert not model.training
        assert torch.equal(embedding(IMAGES), plain)
        assert torch.allclose(embedding(IMAGES[:1]), plain[:1], atol=1e-6)  # no companions are needed


def test_the_encoder_of_a_masked_autoencoder():
    autoencoder = MaskedAutoencoder(vit(), 16, 1, 2).eval()
    with pytest.raises(ModelError, match=r"Embedding\(model\.encoder\)"):
        Embedding(autoencoder)
    with torch.no_grad():
        token, mean = (Embedding(autoencoder.encoder, pool)(IMAGES) for pool in ("default", "avg"))
        assert torch.allclose(token, pooled_by_hand(autoencoder.encoder, "token"), atol=1e-6)
        assert torch.allclose(mean, pooled_by_hand(autoencoder.encoder, "avg"), atol=1e-6)
    assert not torch.allclose(token, mean, atol=1e-2)


def test_what_cannot_be_pooled_says_so():
    with pytest.raises(ModelError, match="unknown pool 'mean'"):
        Embedding(vit(), "mean")
    for pool in ("avg", "token"):
        with pytest.raises(ModelError, match=r"CifarResNet is no timm VisionTransformer.*use pool default"):
            Embedding(create_model("resnet20-cifar", 5), pool)
    without_token = vit("avg", class_token=False)
    with pytest.raises(ModelError, match="no class token; use pool avg"):
        Embedding(without_token, "token")
    assert Embedding(without_token, "avg")(IMAGES).shape == (8, 32)
    by_attention = create_model("vit_tiny_patch16_224", 5, global_pool="map", class_token=False, **SIZES)
    with pytest.raises(ModelError, match="pools by attention"):
        Embedding(by_attention, "avg")
    assert Embedding(by_attention)(IMAGES).shape == (8, 32)
