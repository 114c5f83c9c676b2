from __future__ import annotations

import pytest
import torch
from timm.layers import DropPath

from relatum.errors import ModelError
from relatum.models import OWN_MODELS, CifarResNet, CosineClassifier, create_model


@pytest.mark.parametrize("name", OWN_MODELS)
def test_own_models_by_name(name):
    model = create_model(name, 6).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 6)
    widths = {"resnet10": 512, "vit-nano": 128, "vit-tiny": 192, "vit-small": 384}
    widths |= {"fastnet-s": 256, "fastnet-m": 384, "fastnet-l": 512, "fastnet-experts": 768}
    assert model.get_classifier().in_features == widths.get(name.rpartition("-p")[0] or name, 64)


def test_resnet10_is_four_basic_blocks():
    model = create_model("resnet10", 1000)
    assert [len(getattr(model, f"layer{i}")) for i in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 5.4


def test_options_reach_a_timm_model():
    kwargs = {"img_size": 32, "patch_size": 4, "depth": 1}
    model = create_model("vit_tiny_patch16_224", 6, drop_rate=0.3, head="cosine", scale=9.0, **kwargs).eval()
    assert model.patch_embed.num_patches == 64
    assert model.head_drop.p == 0.3
    assert isinstance(model.get_classifier(), CosineClassifier)
    assert model.get_classifier().scale == 9.0
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 6)


@pytest.mark.parametrize("name", ["resnet20-cifar", "resnet10", "resnet18"])
def test_img_size_is_no_hindrance_for_networks_of_any_size(name):
    model = create_model(name, 6, img_size=32, drop_rate=0.25)
    assert model.drop_rate == 0.25


def test_stochastic_depth_rises_to_the_rate_at_the_last_block():
    rates = [block.drop_path1.drop_prob for block in create_model("vit-nano-p8", 3, drop_path=0.2).blocks[1:]]
    assert rates == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    off = create_model("vit-nano-p8", 3, drop_path=0.0)
    assert not any(isinstance(part, DropPath) for part in off.modules())
    for name in ("resnet18", "resnet10"):
        parts = create_model(name, 3, drop_path=0.2).modules()
        assert max(part.drop_prob for part in parts if isinstance(part, DropPath)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("resnet20-cifar", {"drop_path": 0.1, "img_size": 32}, "no stochastic depth; leave drop_path at 0"),
        ("vgg11", {"drop_path": 0.1}, "no stochastic depth"),
        ("hrnet_w18_small", {"drop_path": 0.1}, "no stochastic depth"),  # takes the rate and never uses it
        ("lcnetv2_base", {"drop_path": 0.1, "drop_rate": 0.1}, "no stochastic depth"),
    ],
)
def test_a_model_without_stochastic_depth_says_so(name, option, words):
    with torch.device("meta"), pytest.raises(ModelError, match=words):
        create_model(name, 3, **option)


def test_a_model_without_dropout_says_so(monkeypatch):
    monkeypatch.setattr(CifarResNet, "__init__", lambda self, depth, num_classes: torch.nn.Module.__init__(self))
    assert isinstance(create_model("resnet20-cifar", 3), CifarResNet)
    with pytest.raises(ModelError, match="no dropout before the classifier; leave drop_rate at 0"):
        create_model("resnet20-cifar", 3, drop_rate=0.1)


def test_seeded_models_are_equal():
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(create_model("resnet20-cifar", 3).fc.weight)
    assert not torch.equal(models[0], models[2])
    assert torch.equal(models[0], models[1])


def test_weights_are_loaded(tmp_path):
    source = CifarResNet(20, 3)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    fresh = create_model("resnet20-cifar", 3)
    assert not torch.equal(fresh.conv1.weight, source.conv1.weight)
    loaded = create_model("resnet20-cifar", 3, weights=str(tmp_path / "w.pth"))
    assert all(torch.equal(v, source.state_dict()[k]) for k, v in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("resnet23-cifar", {}, "resnet20-cifar"),
        ("convnext_ato", {}, "convnext_atto"),
        ("zzzzzzzz", {}, "list_models"),
        ("hf-hub:someone/thing", {}, "local file"),
        ("resnet20-cifar", {"widht": 3}, "widht"),
        ("resnet18", {"patch_size": 4}, "patch_size"),
        ("vit-nano-p5", {}, "vit-nano-p4"),
        ("resnet20-cifar", {"head": "cosin"}, "cosine"),
        ("resnet20-cifar", {"weights": "/nowhere/w.pth"}, "does not exist"),
    ],
)
def test_errors_name_cause_and_cure(name, kwargs, words):
    with pytest.raises(ModelError, match=words):
        create_model(name, 3, **kwargs)


def test_no_classes_is_refused():
    with pytest.raises(ModelError, match="at least one class"):
        create_model("resnet20-cifar", 0)
