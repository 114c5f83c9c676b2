"""Public checkpoints: their key layout to ours and back, and one clear error for what does not fit."""

from __future__ import annotations

import warnings

import pytest
import torch
from safetensors.torch import save_file

from relatum.errors import ModelError
from relatum.models import create_model
from relatum.models.mae import create_mae, encoder_weights, from_public, load_public, save_encoder, to_public

WIDTH, DECODER_WIDTH, PATCHES, VALUES = 64, 64, 16, 48


def model():
    return create_mae("vit-pico-p4", img_size=16)


def block(name, width):
    """Tensors of one block, as in the public files."""
    shapes = {
        "norm1": (width,),
        "attn.qkv": (3 * width, width),
        "attn.proj": (width, width),
        "norm2": (width,),
        "mlp.fc1": (4 * width, width),
        "mlp.fc2": (width, 4 * width),
    }
    tensors = {}
    for part, shape in shapes.items():
        tensors[f"{name}.{part}.weight"] = torch.randn(shape)
        tensors[f"{name}.{part}.bias"] = torch.randn(shape[0])
    return tensors


def public(decoder=True):
    """A checkpoint with the names that public masked autoencoders have, written out."""
    tensors = {
        "cls_token": torch.randn(1, 1, WIDTH),
        "pos_embed": torch.randn(1, 1 + PATCHES, WIDTH),
        "patch_embed.proj.weight": torch.randn(WIDTH, 3, 4, 4),
        "patch_embed.proj.bias": torch.randn(WIDTH),
        "norm.weight": torch.randn(WIDTH),
        "norm.bias": torch.randn(WIDTH),
    }
    for i in range(6):
        tensors |= block(f"blocks.{i}", WIDTH)
    if decoder:
        tensors |= {
            "mask_token": torch.randn(1, 1, DECODER_WIDTH),
            "decoder_pos_embed": torch.randn(1, 1 + PATCHES, DECODER_WIDTH),
            "decoder_embed.weight": torch.randn(DECODER_WIDTH, WIDTH),
            "decoder_embed.bias": torch.randn(DECODER_WIDTH),
            "decoder_norm.weight": torch.randn(DECODER_WIDTH),
            "decoder_norm.bias": torch.randn(DECODER_WIDTH),
            "decoder_pred.weight": torch.randn(VALUES, DECODER_WIDTH),
            "decoder_pred.bias": torch.randn(VALUES),
            **block("decoder_blocks.0", DECODER_WIDTH),
        }
    return tensors


def write(tensors, path):
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save({"model": tensors, "epoch": 799}, path)
    return path


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_a_public_file_fills_the_whole_model(tmp_path, ending):
    tensors, mae = public(), model()
    path = write(tensors, tmp_path / f"mae.{ending}")
    assert not torch.equal(mae.decoder.pred.weight, tensors["decoder_pred.weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_public(mae, path)
    assert torch.equal(mae.encoder.blocks[5].attn.qkv.weight, tensors["blocks.5.attn.qkv.weight"])
    assert torch.equal(mae.encoder.pos_embed, tensors["pos_embed"])
    assert torch.equal(mae.decoder.mask_token, tensors["mask_token"])
    assert torch.equal(mae.decoder.pos_embed, tensors["decoder_pos_embed"])
    assert torch.equal(mae.decoder.blocks[0].mlp.fc2.bias, tensors["decoder_blocks.0.mlp.fc2.bias"])
    back = to_public(mae.state_dict())
    assert set(back) == set(tensors)
    assert all(torch.equal(back[key], tensors[key]) for key in back)


def test_names_go_there_and_back():
    tensors = public()
    ours = from_public(tensors)
    assert set(ours) == set(model().state_dict())
    assert set(to_public(ours)) == set(tensors)
    assert "relation.0.weight" not in to_public({"relation.0.weight": torch.zeros(1)})


def test_prefixes_of_parallel_and_compiled_models_are_taken_off(tmp_path):
    tensors, mae = public(), model()
    path = write({f"module.{key}": value for key, value in tensors.items()}, tmp_path / "mae.pth")
    load_public(mae, path)
    assert torch.equal(mae.encoder.norm.weight, tensors["norm.weight"])


def test_a_file_with_the_encoder_alone_says_that_the_decoder_is_random(tmp_path):
    tensors, mae = public(decoder=False), model()
    before = mae.decoder.pred.weight.clone()
    with pytest.warns(UserWarning, match=r"an encoder only: the decoder keeps its random weights"):
        assert not load_public(mae, write(tensors, tmp_path / "encoder.safetensors"))
    assert torch.equal(mae.encoder.norm.bias, tensors["norm.bias"])
    assert torch.equal(mae.decoder.pred.weight, before)


def other_depth():
    tensors = public()
    return {key: value for key, value in tensors.items() if not key.startswith("blocks.5")}


def half_a_decoder():
    tensors = public()
    del tensors["decoder_pred.weight"]
    return tensors


def residual_network():
    return create_model("resnet20-cifar", 3).state_dict()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to_public(create_mae("vit-nano-p4").state_dict()), r"other shapes: cls_token \(1, 1, 128\)"),
        (lambda: to_public(create_mae("vit-pico-p4").state_dict()), r"other shapes: pos_embed \(1, 65, 64\)"),
        (other_depth, r"missing: blocks\.5\.norm1\.weight"),
        (half_a_decoder, r"missing: decoder_pred\.weight\."),
        (residual_network, r"missing: .* more; unexpected: "),
    ],
)
def test_another_architecture_is_one_clear_error_and_changes_nothing(tmp_path, make, words):
    mae = model()
    before = {key: value.clone() for key, value in mae.state_dict().items()}
    path = write(make(), tmp_path / "other.pth")
    with pytest.raises(ModelError, match=words) as caught:
        load_public(mae, path)
    assert "is no checkpoint of this masked autoencoder" in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in mae.state_dict().items())


def test_unreadable_files_are_the_readers_errors(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_public(model(), tmp_path / "nothing.pth")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load_public(model(), tmp_path / "broken.safetensors")


@pytest.mark.parametrize("layout", ["public", "ours", "encoder"])
def test_the_encoder_of_any_layout_in_timms_names(tmp_path, layout):
    tensors = public(decoder=layout != "encoder")
    content = from_public(tensors) if layout == "ours" else tensors
    found = encoder_weights(write(content, tmp_path / "mae.safetensors"))
    vit = create_model("vit-pico-p4", 7, img_size=16)
    result = vit.load_state_dict(found, strict=False)
    assert set(result.missing_keys) == {"head.weight", "head.bias"}
    assert not result.unexpected_keys
    assert torch.equal(vit.norm.weight, tensors["norm.weight"])


def test_a_saved_encoder_is_a_timm_model_whatever_its_memory_order(tmp_path):
    model = create_mae("vit-pico-p4", img_size=16).to(memory_format=torch.channels_last)
    save_encoder(model, tmp_path / "encoder.safetensors")
    found = encoder_weights(tmp_path / "encoder.safetensors")
    assert found.keys() == model.encoder.state_dict().keys()
    assert all(torch.equal(value, found[key]) for key, value in model.encoder.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]
