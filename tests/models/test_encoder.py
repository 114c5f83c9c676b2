"""A classifier that starts from a pretrained encoder: every layout, every image size, one clear error."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from relatum.errors import ModelError
from relatum.models import create_model, load_encoder
from relatum.models.mae import MaskedAutoencoder
from relatum.relation import BatchFormerV2, attach
from relatum.train.checkpoint import save_checkpoint
from relatum.train.snapshot import take_snapshot

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
NAME = "vit_tiny_patch16_224"
HEAD, POOLED_NORM = ("head.weight", "head.bias"), ("fc_norm.weight", "fc_norm.bias")


def vit(pool="avg", classes=5, **sizes):
    return create_model(NAME, classes, pool=pool, **{**SIZES, **sizes})


def block(name, width):
    shapes = {
        "norm1": (width,),
        "attn.qkv": (3 * width, width),
        "attn.proj": (width, width),
        "norm2": (width,),
        "mlp.fc1": (4 * width, width),
        "mlp.fc2": (width, 4 * width),
    }
    weights = {f"{name}.{part}.weight": torch.randn(shape) for part, shape in shapes.items()}
    return weights | {f"{name}.{part}.bias": torch.randn(shape[0]) for part, shape in shapes.items()}


def public(width=32, depth=2, patch=4, patches=16):
    """The encoder of a public masked autoencoder, by the names that such files have."""
    tensors = {
        "cls_token": torch.randn(1, 1, width),
        "pos_embed": torch.randn(1, 1 + patches, width),
        "patch_embed.proj.weight": torch.randn(width, 3, patch, patch),
        "patch_embed.proj.bias": torch.randn(width),
        "norm.weight": torch.randn(width),
        "norm.bias": torch.randn(width),
    }
    for number in range(depth):
        tensors |= block(f"blocks.{number}", width)
    return tensors


def decoder():
    parts = {"mask_token": torch.randn(1, 1, 8), "decoder_pos_embed": torch.randn(1, 17, 8)}
    parts |= {"decoder_embed.weight": torch.randn(8, 32), "decoder_pred.bias": torch.randn(48)}
    return parts | block("decoder_blocks.0", 8)


def ours(tensors):
    """The same file as our masked autoencoder names its tensors."""
    names = {key: f"encoder.{key}" for key in tensors}
    names |= {key: key.replace("decoder_", "decoder.") for key in tensors if key.startswith("decoder_")}
    return {{"mask_token": "decoder.mask_token"}.get(key, names[key]): value for key, value in tensors.items()}


def write_layout(layout, tensors, folder):
    whole = {**tensors, **decoder()}
    head = {"head.weight": torch.randn(9, 32), "head.bias": torch.randn(9)}
    contents = {
        "plain": tensors,
        "with head": {**tensors, **head},
        "decoder": whole,
        "wrapped": {"model": whole, "epoch": 799},
        "parallel": {"state_dict": {f"module.{key}": value for key, value in whole.items()}},
        "ours": ours(whole),
        "our encoder": ours(tensors),
    }
    torch.save(contents[layout], folder / "encoder.pth")
    return folder / "encoder.pth"


def assert_holds(model, tensors):
    state = model.state_dict()
    for key, value in tensors.items():
        assert torch.equal(state[key], value), key


@pytest.mark.parametrize("pool", ["avg", "token"])
@pytest.mark.parametrize("layout", ["plain", "with head", "decoder", "wrapped", "parallel", "ours", "our encoder"])
def test_every_layout_fills_all_but_the_classifier(tmp_path, layout, pool):
    tensors, model = public(), vit(pool)
    path = write_layout(layout, tensors, tmp_path)
    before = copy.deepcopy(model.state_dict())
    anew = load_encoder(model, path)
    assert set(anew) == {*HEAD, *POOLED_NORM} if pool == "avg" else set(anew) == set(HEAD)
    assert not torch.equal(before["cls_token"], tensors["cls_token"])
    placed = {key: value for key, value in tensors.items() if pool == "token" or not key.startswith("norm.")}
    assert {*placed, *anew} == set(before)
    assert_holds(model, placed)
    assert_holds(model, {key: before[key] for key in anew})


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("kind", ["autoencoder", "classifier"])
def test_the_checkpoint_of_a_run(tmp_path, kind, ema):
    torch.manual_seed(0)
    plain = vit("token", 7)
    model = MaskedAutoencoder(plain, 16, 1, 2) if kind == "autoencoder" else plain
    relation = attach(model, BatchFormerV2(at="decoder.blocks.0" if kind == "autoencoder" else "blocks.1"))
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.add_(torch.randn_like(parameter))
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()  # so that there is a state to leave out
    path = save_checkpoint(tmp_path, take_snapshot(model, average if ema else None, optimizer), 1)
    relation.detach()
    source = average if ema else model
    encoder = source.encoder if kind == "autoencoder" else source
    fresh = vit("token")
    assert load_encoder(fresh, path) == HEAD
    skipped = ("head.", "relation.")
    assert_holds(fresh, {key: value for key, value in encoder.state_dict().items() if not key.startswith(skipped)})


def test_the_encoder_of_an_autoencoder_gives_its_features_to_the_classifier(tmp_path):
    autoencoder = MaskedAutoencoder(vit("token"), 16, 1, 2).eval()
    save_file(autoencoder.state_dict(), tmp_path / "mae.safetensors")
    model = create_model(NAME, 5, encoder=str(tmp_path / "mae.safetensors"), pool="token", **SIZES).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model.head(autoencoder.encoder(images))
        assert torch.allclose(model(images), expected, atol=1e-6)
        assert not torch.allclose(vit("token").eval()(images), expected, atol=1e-2)
    assert not autoencoder.encoder.pos_embed.requires_grad
    assert model.pos_embed.requires_grad


def test_positions_become_trainable_in_a_model_that_had_them_frozen(tmp_path):
    encoder = MaskedAutoencoder(vit("token"), 16, 1, 2).encoder
    assert not encoder.pos_embed.requires_grad and encoder.num_classes == 0
    torch.save(public(), tmp_path / "encoder.pth")
    assert load_encoder(encoder, tmp_path / "encoder.pth") == ()
    assert encoder.pos_embed.requires_grad


@pytest.mark.parametrize(("old", "new"), [(8, 14), (14, 24), (8, 24), (4, 2)])
def test_positions_are_resized_by_bicubic_interpolation(tmp_path, old, new):
    tensors = public(patches=old * old)
    torch.save(tensors, tmp_path / "encoder.pth")
    model = vit(img_size=4 * new)
    load_encoder(model, tmp_path / "encoder.pth")
    grid = tensors["pos_embed"][:, 1:].reshape(1, old, old, 32).permute(0, 3, 1, 2)
    wanted = functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    found = model.pos_embed.detach()
    assert found.shape == (1, 1 + new * new, 32) and model.pos_embed.requires_grad
    assert torch.equal(found[:, 0], tensors["pos_embed"][:, 0])
    assert torch.allclose(found[:, 1:], wanted.flatten(2).transpose(1, 2), atol=1e-5)
    images = torch.randn(1, 3, 4 * new, 4 * new)
    assert model.eval()(images).isfinite().all()


def test_sizes_of_the_published_runs(tmp_path):
    """Pretrained at 128 pixels, fine-tuned at 224, then at 384, patches of 16 pixels: 8 x 8, 14 x 14, 24 x 24."""
    sizes = {"patch_size": 16, "depth": 1, "embed_dim": 8, "num_heads": 2}
    path = tmp_path / "encoder.safetensors"
    save_file(public(width=8, depth=1, patch=16, patches=64), path)
    for size, patches in ((224, 196), (384, 576)):
        model = create_model(NAME, 3, pool="avg", encoder=str(path), img_size=size, **sizes)
        assert model.pos_embed.shape == (1, 1 + patches, 8)
        path = tmp_path / f"{size}.safetensors"
        save_file(model.state_dict(), path)


def test_a_model_that_pools_the_mean_starts_another_with_its_norm(tmp_path):
    source = timm.create_model(NAME, num_classes=9, global_pool="avg", **SIZES)
    nn.init.normal_(source.fc_norm.weight)
    save_file(source.state_dict(), tmp_path / "vit.safetensors")
    model = vit("avg")
    assert load_encoder(model, tmp_path / "vit.safetensors") == HEAD
    assert torch.equal(model.fc_norm.weight, source.fc_norm.weight)
    with pytest.raises(ModelError, match=r"missing: norm\.weight.*set pool to avg"):
        load_encoder(vit("token"), tmp_path / "vit.safetensors")


def changed(**without):
    tensors = public()
    tensors.update({key: value for key, value in without.items() if value is not None})
    return {key: value for key, value in tensors.items() if without.get(key, value) is not None}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            lambda: public(width=48, depth=3),
            "another architecture.*file has width 48 and depth 3, the model width 32 and depth 2",
        ),
        (lambda: public(depth=1), r"file has depth 1, the model depth 2; missing: blocks\.1\.norm1\.weight"),
        (lambda: public(patch=8), "file has patch size 8, the model patch size 4"),
        (lambda: changed(**{"norm.weight": None}), r"another architecture.*missing: norm\.weight\. To mend"),
        (lambda: changed(**{"blocks.0.ls1.gamma": torch.ones(32)}), r"unexpected: blocks\.0\.ls1\.gamma"),
        (lambda: changed(**{"blocks.1.mlp.fc1.bias": torch.ones(3)}), r"fc1\.bias \(3,\) in the file, \(128,\) in"),
        (lambda: {"conv1.weight": torch.ones(3)}, "holds no ViT"),
        (lambda: changed(pos_embed=torch.zeros(1, 1 + 12, 32)), "12 positions of patches, which is no square"),
    ],
)
def test_another_architecture_is_one_error_and_changes_nothing(tmp_path, tensors, words):
    model = vit("token")
    before = copy.deepcopy(model.state_dict())
    torch.save(tensors(), tmp_path / "encoder.pth")
    with pytest.raises(ModelError, match=words) as caught:
        load_encoder(model, tmp_path / "encoder.pth")
    assert "encoder.pth" in str(caught.value)
    assert_holds(model, before)
    torch.save(public(), tmp_path / "encoder.pth")
    load_encoder(model, tmp_path / "encoder.pth")
    assert not torch.equal(model.cls_token, before["cls_token"])


def test_no_encoder_for_other_models_and_no_folders(tmp_path):
    torch.save(public(), tmp_path / "encoder.pth")
    with pytest.raises(ModelError, match=r"VisionTransformer, not CifarResNet; give.*as weights"):
        create_model("resnet20-cifar", 3, encoder=str(tmp_path / "encoder.pth"))
    with pytest.raises(ModelError, match="is a folder; give a file"):
        load_encoder(vit(), tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_encoder(vit(), tmp_path / "nothing.pth")


def test_the_start_of_the_head_stays(tmp_path):
    torch.save({**public(), "head.weight": torch.ones(5, 32), "head.bias": torch.ones(5)}, tmp_path / "encoder.pth")
    model = vit(encoder=str(tmp_path / "encoder.pth"), head_std=2e-5, head_bias="log(C-1)")
    assert 0 < model.head.weight.abs().max() < 2e-4
    assert model.head.bias.sigmoid().tolist() == pytest.approx([0.2] * 5)


def test_a_relation_on_the_model_is_no_hindrance(tmp_path):
    tensors, model = public(), vit("token")
    torch.save(tensors, tmp_path / "encoder.pth")
    attach(model, BatchFormerV2(at="blocks.1"))
    assert load_encoder(model, tmp_path / "encoder.pth") == HEAD
    assert_holds(model, tensors)
