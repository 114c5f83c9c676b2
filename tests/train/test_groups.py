"""Layer-wise decay of the learning rate: the rate of every parameter, against a table written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
import torchvision
from tiny import TRAIN, Net, task

from relatum.errors import ConfigError
from relatum.models import create_model
from relatum.models.freeze import freeze_backbone
from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask
from relatum.train.groups import model_groups, weight_decay_groups

LAYERED = replace(TRAIN, layer_decay=0.5, weight_decay=0.05, decay_all=False)


def vit_task(relation: bool = False, **options) -> ClassificationTask:
    model = create_model("vit-nano-p8", 3, img_size=16)
    return ClassificationTask(model, CrossEntropy(), attach(model, BatchFormer()) if relation else None, **options)


def settings_by_name(model, groups) -> dict[str, tuple[float, float]]:
    """(lr_scale, weight_decay) of each parameter; a parameter in two groups is an error."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = [(names[id(p)], (g["lr_scale"], g["weight_decay"])) for g in groups for p in g["params"]]
    assert len(found) == len(dict(found))
    return dict(found)


def expected_vit_layer(name: str) -> int:
    """Stem 0, block i is i + 1 (six of them), the last norm goes with the last block, the head is 7."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return {"norm": 6, "head": 7}.get(name.split(".")[0], 0)


@pytest.mark.parametrize("relation", [False, True])
def test_each_layer_of_a_vit_has_its_rate_and_decay(relation):
    built = vit_task(relation)
    found = settings_by_name(built.model, built.param_groups(LAYERED))
    assert set(found) == {name for name, _ in built.model.named_parameters()}
    for name, parameter in built.model.named_parameters():
        spared = parameter.ndim == 1 or name in ("pos_embed", "cls_token")
        scale = 0.1 if name.startswith("relation.") else 0.5 ** (7 - expected_vit_layer(name))
        assert found[name] == (pytest.approx(scale), 0.0 if spared else 0.05), name
    assert found["head.weight"] == (1.0, 0.05)
    assert found["patch_embed.proj.weight"] == (0.5**7, 0.05)


def test_decay_all_decays_positions_and_vectors_too():
    built = vit_task()
    config = replace(LAYERED, decay_all=True)
    assert {decay for _, decay in settings_by_name(built.model, built.param_groups(LAYERED)).values()} == {0.0, 0.05}
    assert {decay for _, decay in settings_by_name(built.model, built.param_groups(config)).values()} == {0.05}


def test_the_groups_of_the_relation_are_its_own():
    built = vit_task(relation=True, relation_lr_scale=0.25, relation_weight_decay=0.5)
    own = {id(p) for p in built.relation.module.parameters()}
    groups = [g for g in built.param_groups(LAYERED) if {id(p) for p in g["params"]} & own]
    assert {id(p) for g in groups for p in g["params"]} == own
    assert sorted((g["lr_scale"], g["weight_decay"]) for g in groups) == [(0.25, 0.0), (0.25, 0.5)]


@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("relation", [True, False])
def test_a_layer_decay_of_1_gives_the_two_plain_groups(relation, decay_all):
    built = vit_task(relation)
    config = replace(LAYERED, decay_all=decay_all)
    host = [(name, p) for name, p in built.model.named_parameters() if not name.startswith("relation.")]
    plain = _comparable(weight_decay_groups(host, 0.05, decay_all, {"pos_embed", "cls_token"}))
    assert _comparable(built.param_groups(config))[: len(plain)] != plain
    groups = _comparable(built.param_groups(replace(config, layer_decay=1.0)))
    assert groups[: len(plain)] == plain
    assert len(groups) == len(plain) * (1 + relation)


@pytest.mark.parametrize("layer_decay", [1.0, 0.75])
def test_positions_and_tokens_are_decayed_only_with_everything(layer_decay):
    built = vit_task(False)
    for decay_all, expected in ((True, 0.05), (False, 0.0)):
        config = replace(LAYERED, decay_all=decay_all, layer_decay=layer_decay)
        found = settings_by_name(built.model, built.param_groups(config))
        assert [found[name][1] for name in ("pos_embed", "cls_token")] == [expected, expected]
        assert found["head.weight"][1] == 0.05


def _comparable(groups) -> list[dict]:
    return [{**group, "params": [id(p) for p in group["params"]]} for group in groups]


@pytest.mark.parametrize("relation", [False, True])
def test_of_a_frozen_backbone_only_the_head_trains_at_the_full_rate(relation):
    model = create_model("vit-nano-p8", 3, img_size=16)
    frozen = freeze_backbone(model)
    handle = attach(model, BatchFormer()) if relation else None
    built = ClassificationTask(model, CrossEntropy(), handle, frozen=frozen)
    found = settings_by_name(model, built.param_groups(LAYERED))
    assert {name: v for name, v in found.items() if not name.startswith("relation.")} == {
        "head.weight": (1.0, 0.05),
        "head.bias": (1.0, 0.0),
    }
    assert any(name.startswith("relation.") for name in found) == relation


@pytest.mark.parametrize(
    ("name", "kwargs", "order"),
    [
        # Two blocks in each of four stages, a stem before and the head after: layer 0 to 9.
        ("resnet18", {}, {"conv1.weight": 0, "layer1.0.conv1.weight": 1, "layer4.1.conv2.weight": 8, "fc.weight": 9}),
        # 2 + 2 + 6 + 2 blocks; a downsampling belongs to the block after it.
        (
            "swin_tiny_patch4_window7_224",
            {"img_size": 64},
            {
                "patch_embed.proj.weight": 0,
                "layers.1.downsample.reduction.weight": 3,
                "layers.2.blocks.5.mlp.fc1.weight": 10,
                "norm.weight": 12,
                "head.fc.weight": 13,
            },
        ),
        (
            "deit_tiny_distilled_patch16_224",
            {"depth": 2},
            {"dist_token": 0, "blocks.1.mlp.fc1.weight": 2, "head.weight": 3, "head_dist.weight": 3},
        ),
    ],
)
def test_other_hosts_are_ordered_from_stem_to_head(name, kwargs, order):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=5, **kwargs)
    found = settings_by_name(model, model_groups(model, LAYERED))
    assert len(found) == len(list(model.parameters()))
    top = max(order.values())
    assert {key: found[key][0] for key in order} == {key: 0.5 ** (top - layer) for key, layer in order.items()}


def test_swin_spares_its_table_of_positions():
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224", img_size=64)
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    assert settings_by_name(model, model_groups(model, replace(LAYERED, decay_all=True)))[name][1] == 0.05
    assert settings_by_name(model, model_groups(model, LAYERED))[name][1] == 0.0


@pytest.mark.parametrize(
    "build",
    [
        Net,
        lambda: create_model("resnet20-cifar", 3),
        lambda: torchvision.models.resnet18(num_classes=3),
        lambda: timm.create_model("levit_128s", num_classes=3),  # its group_matcher puts everything into one layer
    ],
    ids=["home-made", "cifar", "torchvision", "levit"],
)
def test_a_model_that_does_not_tell_its_layers_is_refused(build):
    with torch.device("meta"):
        model = build()
    assert model_groups(model, replace(LAYERED, layer_decay=1.0))
    with pytest.raises(ConfigError, match=r"order of the layers.*--train.layer-decay 1"):
        model_groups(model, LAYERED)


def test_the_refusal_reaches_the_task():
    with pytest.raises(ConfigError, match="order of the layers, which Net"):
        task(relation=True).param_groups(LAYERED)
