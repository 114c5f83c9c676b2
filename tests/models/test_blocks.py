import pytest
import timm
import torchvision
from torch import nn

from relatum import BatchFormer, attach, create_model
from relatum.models.blocks import find_blocks

EXPECTED = {
    "vit_tiny_patch16_224": (12, "blocks.0", "blocks.11"),
    "swin_tiny_patch4_window7_224": (12, "layers.0.blocks.0", "layers.3.blocks.1"),
    "eva02_tiny_patch14_224": (12, "blocks.0", "blocks.11"),
    "resnet18": (8, "layer1.0", "layer4.1"),
    "convnext_atto": (12, "stages.0.blocks.0", "stages.3.blocks.1"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_of_timm_models(name):
    found = [block for block, _ in find_blocks(timm.create_model(name))]
    assert (len(found), found[0], found[-1]) == EXPECTED[name]


def test_blocks_of_other_models():
    assert [name for name, _ in find_blocks(create_model("resnet20-cifar", 5))][-1] == "layer3.2"
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    vit = torchvision.models.VisionTransformer(image_size=32, patch_size=8, **sizes)
    assert [name for name, _ in find_blocks(vit)] == [f"encoder.layers.encoder_layer_{k}" for k in range(2)]


def test_one_block_with_attention_is_found_and_single_layers_are_not():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1)
    assert [name for name, _ in find_blocks(vit)] == ["blocks.0"]
    assert find_blocks(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))) == []


def test_an_encoder_goes_before_a_decoder_and_a_relation_is_no_block():
    transformer = nn.Transformer(16, 2, 3, 2, 32)
    assert [name for name, _ in find_blocks(transformer)] == [f"encoder.layers.{k}" for k in range(3)]
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 5))
    attach(net, BatchFormer(layers=2))
    assert find_blocks(net) == []
