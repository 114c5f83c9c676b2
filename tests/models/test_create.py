from __future__ import annotations

import pytest
import torch

from relatum.errors import ModelError
from relatum.models import OWN_MODELS, CifarResNet, CosineClassifier, create_model


@pytest.mark.parametrize("name", OWN_MODELS)
def test_own_models_by_name(name):
    model = create_model(name, 6).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 6)
    assert model.get_classifier().in_features == (512 if name == "resnet10" else 64)


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
