from __future__ import annotations

from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from torch import nn

import relatum
from relatum.errors import ModelError
from relatum.models import CifarResNet, create_model, find_classifier, replace_classifier


class Homemade(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.scorer = nn.Linear(8, 5)
        self.auxiliary = nn.Linear(8, 2)

    def forward(self, x):
        return self.scorer(self.body(x).relu())


HOSTS = {
    "cifar": (lambda: CifarResNet(20, 7), ["fc"]),
    "resnet18": (lambda: create_model("resnet18", 7), ["fc"]),
    "vit": (lambda: create_model("vit_tiny_patch16_224", 7, img_size=32, patch_size=4), ["head"]),
    "convnext": (lambda: create_model("convnext_atto", 7), ["head.fc"]),
    "efficientnet": (lambda: create_model("efficientnet_b0", 7), ["classifier"]),
    "deit": (lambda: create_model("deit_tiny_distilled_patch16_224", 7), ["head", "head_dist"]),
    "torchvision resnet": (lambda: torchvision.models.resnet18(num_classes=7), ["fc"]),
    "torchvision vit": (
        lambda: torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=7),
        ["heads.head"],
    ),
}


@pytest.mark.parametrize("host", HOSTS)
def test_hosts(host):
    build, names = HOSTS[host]
    model = build()
    found = find_classifier(model)
    assert [name for name, _ in found] == names
    for name, module in found:
        assert module is model.get_submodule(name)
        assert module.out_features == 7


def test_homemade_by_count_by_attribute_by_config_and_by_position():
    model = Homemade()
    assert find_classifier(model)[0][0] == "auxiliary"  # nobody knows the number of classes: the last one
    assert find_classifier(model, num_classes=8)[0][0] == "body"
    model.config = SimpleNamespace(num_labels=5)
    assert find_classifier(model)[0][0] == "scorer"
    model.num_classes = 2
    assert find_classifier(model)[0][0] == "auxiliary"
    assert find_classifier(model, name="body") == [("body", model.body)]


def test_a_replaced_head_is_found_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    replace_classifier(model, "cosine", 6)
    assert find_classifier(model, num_classes=6) == [("1", model[1])]
    assert model(torch.ones(1, 4)).shape == (1, 6)


def test_explicit_name_wins_over_get_classifier():
    model = CifarResNet(20, 7)
    assert find_classifier(model, name="layer3.0.conv1") == [("layer3.0.conv1", model.layer3[0].conv1)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find_classifier(Homemade(), name="scorr"), "nearest names: scorer"),
        (lambda: find_classifier(Homemade(), name="@@"), "linear layers: body"),
        (lambda: find_classifier(Homemade(), num_classes=9), r"9 outputs.*scorer \(8 -> 5\)"),
        (lambda: find_classifier(nn.Conv2d(3, 3, 1)), "linear layers: none"),
        (lambda: find_classifier(timm.create_model("resnet18", num_classes=0)), "no classifier.*reset_classifier"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ModelError, match=words):
        call()


def test_linear_layers_of_an_attached_relation_are_passed_over():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 5))
    relation = relatum.attach(model, relatum.BatchFormer())
    assert any(isinstance(part, nn.Linear) for part in relation.module.modules()), "there is something to pass over"
    assert find_classifier(model) == [("2", model[2])]
