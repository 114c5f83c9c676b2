"""Layer-wise learning rates of a ViT that pools the mean of its patches, as published runs fine-tune it."""

from __future__ import annotations

import pytest
import torch

from relatum.config import TrainConfig
from relatum.models import create_model
from relatum.train.groups import model_groups

DEPTH, DECAY, WEIGHT_DECAY = 3, 0.75, 0.05


def layer(name: str) -> int:
    """0 for class token, positions and patches; b + 1 for block b; the rest, fc_norm and head, after all blocks."""
    if name in ("cls_token", "pos_embed") or name.startswith("patch_embed."):
        return 0
    return int(name.split(".")[1]) + 1 if name.startswith("blocks.") else DEPTH + 1


@pytest.mark.parametrize("decay", [DECAY, 0.65])
def test_each_layer_has_the_published_share_of_the_rate(decay):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": DEPTH, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", 4, pool="avg", head_std=2e-5, **sizes)
    config = TrainConfig(layer_decay=decay, weight_decay=WEIGHT_DECAY, decay_all=False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(names[id(p)], g["lr_scale"], g["weight_decay"]) for g in model_groups(model, config) for p in g["params"]]
    assert sorted(name for name, _, _ in found) == sorted(names.values())
    assert {"fc_norm.weight", "fc_norm.bias", "head.weight"} <= set(names.values())
    shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    for name, scale, weight_decay in found:
        assert scale == pytest.approx(decay ** (DEPTH + 1 - layer(name))), name
        spared = shapes[name] == 1 or name in ("cls_token", "pos_embed")
        assert weight_decay == (0.0 if spared else WEIGHT_DECAY), name
    scales = {name: scale for name, scale, _ in found}
    assert scales["head.weight"] == scales["fc_norm.weight"] == 1.0
    assert scales["blocks.0.norm1.weight"] == pytest.approx(decay**DEPTH)
    assert scales[f"blocks.{DEPTH - 1}.mlp.fc2.weight"] == pytest.approx(decay)
    assert scales["pos_embed"] == scales["cls_token"] == pytest.approx(decay ** (DEPTH + 1))
