"""Export: what a stranger loads computes what was trained."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import relatum
from relatum.config import ModelConfig
from relatum.data.preprocess import Preprocess
from relatum.errors import ConfigError, ModelError
from relatum.models import create_model
from relatum.models.export import export_model
from relatum.models.export_blueprint import crop_share
from relatum.models.export_check import TOLERANCE, check_same_logits, probe_images
from relatum.trained import Trained

NAMES = ("kākāpō", "ant, red", "ox", "cat", "dog")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def _trained(name, *, head="linear", scale=30.0, size=32, resize=40, **kwargs):
    torch.manual_seed(3)
    model = create_model(name, len(NAMES), head=head, scale=scale, **kwargs).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():  # statistics too: fresh ones would hide that they were lost
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.3 * torch.rand_like(tensor)).add_(0.02 * torch.randn_like(tensor))
    settings = ModelConfig(name=name, head=head, scale=scale)
    return Trained(model, NAMES, Preprocess(size, resize, MEAN, STD), settings, kwargs)


def _photo(folder: Path) -> np.ndarray:
    ramp = np.linspace(0, 255, 60 * 90 * 3).reshape(60, 90, 3)
    pixels = (ramp + 60 * np.random.default_rng(0).random((60, 90, 3))).clip(0, 255).astype(np.uint8)
    folder.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(folder / "photo.jpg", format="PNG")  # lossless; readers look at the content
    return pixels


def _readme_code(folder: Path, heading: str) -> str:
    """The code of README.md that leads to the logits under `heading`."""
    text = (folder / "README.md").read_text("utf-8")
    blocks = dict(re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", text, re.M | re.S))
    wanted = [code for title, code in blocks.items() if title.startswith(("Class names", heading))]
    assert any(title.startswith(heading) for title in blocks)
    return "\n".join(wanted)


def _check_logits(trained: Trained, pixels: np.ndarray, logits: torch.Tensor) -> None:
    # PIL and torch resize to whole grey levels and may differ by one: the logits agree to that, not to the last bit.
    with torch.no_grad():
        images = torch.stack([trained.preprocess(pixels), trained.preprocess(255 - pixels)])
        expected, other = trained.model(images).split(1)
    allowed = 0.05 * (expected - other).abs().max()
    assert (logits - expected).abs().max() <= allowed, (logits, expected)


# Folder, model, format, heading in README.md: each of these is used by a process that never sees relatum.
FOREIGN = (
    ("vit", "vit_tiny_patch16_224", "linear", {"img_size": 32, "depth": 2, "patch_size": 8}, "safetensors", "timm"),
    ("cosine", "vit_tiny_patch16_224", "cosine", {"img_size": 32, "depth": 1}, "safetensors", "model.safetensors"),
    ("small", "vit-nano-p8", "linear", {"img_size": 32}, "safetensors", "timm"),
    ("resnet10", "resnet10", "linear", {"img_size": 32}, "safetensors", "model.safetensors"),
    ("program", "resnet20-cifar", "cosine", {"img_size": 32}, "torch-export", "torch.export"),
)


def test_a_stranger_without_relatum_uses_the_exports_as_their_readme_says(tmp_path):
    script, exported = ["import os, sys, numpy"], {}
    for folder, name, head, kwargs, format, heading in FOREIGN:
        trained = _trained(name, head=head, scale=7.0, **kwargs)
        exported[folder] = trained, _photo(tmp_path / folder)
        [result] = export_model(trained, tmp_path / folder, [format])
        assert result.max_difference <= 1e-5
        script += [f"os.chdir({str(tmp_path / folder)!r})", _readme_code(tmp_path / folder, heading)]
        script += ["numpy.save('logits.npy', logits.detach().numpy())"]
    script += ["assert 'relatum' not in sys.modules", "import relatum.models, relatum.models.export"]
    script += ["assert not {'onnx', 'onnxscript', 'onnxruntime'} & set(sys.modules)"]
    (tmp_path / "run.py").write_text("\n".join(script), encoding="utf-8")
    command = [sys.executable, "-X", "utf8", "run.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(relatum.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    for (folder, (trained, pixels)), printed in zip(exported.items(), done.stdout.splitlines(), strict=True):
        logits = torch.from_numpy(np.load(tmp_path / folder / "logits.npy"))
        _check_logits(trained, pixels, logits)
        assert printed == NAMES[logits.argmax()]


def test_timm_reads_the_preprocessing_from_the_folder(tmp_path):
    trained = _trained("resnet10t", img_size=32)  # resnets are built without it, and config.json must not hold it
    pixels = _photo(tmp_path)
    export_model(trained, tmp_path, ["safetensors"])
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(model)
    assert tuple(config["input_size"]) == (3, 32, 32)
    assert tuple(config["mean"]) == MEAN and tuple(config["std"]) == STD
    assert config["interpolation"] == "bilinear"
    image = timm.data.create_transform(**config, is_training=False)(Image.fromarray(pixels))
    one_grey_level = 1.01 / 255 / min(STD)
    assert (image - trained.preprocess(pixels)).abs().max() <= one_grey_level
    images = probe_images(trained.preprocess, 3)
    with torch.no_grad():
        assert torch.equal(model(images), trained.model(images))


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "resnet18.a1_in1k"])
def test_two_heads_and_tagged_names_load_with_timm(tmp_path, name):
    kwargs = {"depth": 1, "img_size": 32} if name.startswith("deit") else {}
    trained = _trained(name, **kwargs)
    [result] = export_model(trained, tmp_path, ["safetensors"])
    assert result.max_difference <= 1e-6
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["architecture"] == name.partition(".")[0]


def test_a_vit_for_another_size_than_its_images_keeps_its_own(tmp_path):
    trained = _trained("vit_tiny_patch16_224", depth=1, dynamic_img_size=True)  # built for 224, shown 32
    [result] = export_model(trained, tmp_path, ["safetensors"])
    assert result.max_difference <= 1e-6
    assert load_file(result.path)["pos_embed"].shape[1] == 14 * 14 + 1


def test_torch_export_takes_any_batch_size(tmp_path):
    trained = _trained("resnet20-cifar", img_size=32)
    [result] = export_model(trained, tmp_path, ["torch-export"])
    assert result.path == tmp_path / "model.pt2" and result.max_difference <= 1e-5
    program = torch.export.load(result.path).module()
    for count in (1, 2, 3, 17):
        images = probe_images(trained.preprocess, count)
        with torch.no_grad():
            assert torch.allclose(program(images), trained.model(images), atol=1e-4)


@pytest.mark.skipif(not HAS_ONNX, reason="needs onnx, onnxscript and onnxruntime: pip install 'relatum[export]'")
def test_onnx_is_one_file_for_any_batch_and_its_readme_runs(tmp_path, monkeypatch):
    import onnxruntime

    trained = _trained("resnet10", head="cosine", img_size=32)
    pixels = _photo(tmp_path)
    results = export_model(trained, tmp_path, ["onnx", "safetensors"])
    assert [result.format for result in results] == ["onnx", "safetensors"]
    assert {path.name for path in tmp_path.glob("model.*")} == {"model.onnx", "model.safetensors"}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    for count in (1, 2, 7):
        images = probe_images(trained.preprocess, count)
        [logits] = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            assert np.abs(logits - trained.model(images).numpy()).max() <= 1e-4
    monkeypatch.chdir(tmp_path)
    for heading in ("ONNX", "model.safetensors"):
        found: dict[str, object] = {}
        exec(_readme_code(tmp_path, heading), found)
        _check_logits(trained, pixels, torch.as_tensor(found["logits"]))


@pytest.mark.parametrize(
    ("name", "head", "kwargs", "words"),
    [
        ("resnet20-cifar", "cosine", {"img_size": 32}, "load with relatum"),
        ("resnet20-cifar", "linear", {}, "load with relatum"),
        ("resnet10", "linear", {"img_size": 32}, "timm does not know resnet10"),
        ("resnet10t", "cosine", {"img_size": 32}, "cosine classifier"),
    ],
)
def test_what_timm_cannot_build_says_so_and_shows_how(tmp_path, monkeypatch, name, head, kwargs, words):
    trained = _trained(name, head=head, scale=7.0, **kwargs)
    pixels = _photo(tmp_path)
    [result] = export_model(trained, tmp_path, ["safetensors"])
    assert words in result.note and "onnx" in result.note
    assert result.max_difference <= 1e-6
    with pytest.raises(RuntimeError, match="Unknown model"):  # refused, never misread
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(_readme_code(tmp_path, "model.safetensors"), found)
    _check_logits(trained, pixels, found["logits"])


def test_companion_files(tmp_path):
    trained = _trained("resnet20-cifar")
    export_model(trained, tmp_path / "new" / "folder", ["safetensors"])
    folder = tmp_path / "new" / "folder"
    assert (folder / "classes.txt").read_text("utf-8") == "".join(f"{name}\n" for name in NAMES)
    assert Preprocess.from_dict(json.loads((folder / "preprocess.json").read_text())) == trained.preprocess
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "classes.txt", "config.json", "model.safetensors", "preprocess.json",
    ]  # fmt: skip


def test_a_model_in_training_mode_is_exported_for_evaluation_and_left_as_it_was(tmp_path):
    trained = _trained("resnet20-cifar")
    images = probe_images(trained.preprocess, 2)
    with torch.no_grad():
        expected = trained.model(images)
    trained.model.train()
    before = {key: value.clone() for key, value in trained.model.state_dict().items()}
    export_model(trained, tmp_path, ["torch-export"])
    assert trained.model.training and all(p.requires_grad for p in trained.model.parameters())
    assert all(torch.equal(before[key], value) for key, value in trained.model.state_dict().items())
    with torch.no_grad():
        assert not torch.allclose(trained.model(images), expected, atol=1e-3)  # training mode does differ
        assert torch.allclose(torch.export.load(tmp_path / "model.pt2").module()(images), expected, atol=1e-5)


def test_an_attached_relation_is_refused_and_the_detached_model_is_not(tmp_path):
    trained = _trained("resnet20-cifar")
    relation = relatum.attach(trained.model, relatum.BatchFormer())
    with pytest.raises(ModelError, match="detach"):
        export_model(trained, tmp_path / "out", ["safetensors"])
    assert not (tmp_path / "out").exists()
    relation.detach()
    [result] = export_model(trained, tmp_path / "out", ["safetensors"])
    assert not any(name.startswith("relation") for name in load_file(result.path))


def test_unknown_and_missing_formats(tmp_path):
    trained = _trained("resnet20-cifar")
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        export_model(trained, tmp_path, ["onxx"])
    with pytest.raises(ConfigError, match="at least one"):
        export_model(trained, tmp_path, [])


def test_missing_onnx_packages_name_the_extra_before_anything_is_written(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(ModelError, match=r"onnxscript: pip install 'relatum\[export\]'"):
        export_model(_trained("resnet20-cifar"), tmp_path / "out", ["safetensors", "onnx"])
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way_is_a_clear_error(tmp_path):
    (tmp_path / "taken").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(ModelError, match=r"is a file|cannot write"):
            export_model(_trained("resnet20-cifar"), out, ["safetensors"])
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failed_check_leaves_the_former_export_alone(tmp_path, monkeypatch):
    export_model(_trained("resnet20-cifar"), tmp_path, ["safetensors"])
    before = (tmp_path / "model.safetensors").read_bytes()
    other = _trained("resnet20-cifar")
    nn.init.ones_(other.model.fc.weight)
    monkeypatch.setattr("relatum.models.export.load_file", lambda path: _trained("resnet20-cifar").model.state_dict())
    with pytest.raises(ModelError, match="differ"):
        export_model(other, tmp_path, ["safetensors"])
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".export-*"))
    monkeypatch.undo()
    export_model(other, tmp_path, ["safetensors"])
    assert (tmp_path / "model.safetensors").read_bytes() != before


def test_the_check_refuses_what_differs():
    preprocess = Preprocess(8, 8, MEAN, STD)

    def model(images):
        return images.flatten(1)[:, :4]

    assert check_same_logits("test", model, model, preprocess) == 0.0
    small = check_same_logits("test", model, lambda x: model(x) + TOLERANCE / 2, preprocess)
    assert 0 < small <= TOLERANCE
    for wrong in (lambda x: model(x) + 3 * TOLERANCE, lambda x: model(x) * float("nan"), lambda x: model(x)[:, :3]):
        with pytest.raises(ModelError, match="not kept"):
            check_same_logits("test", model, wrong, preprocess)
    with pytest.raises(ModelError, match="NaN"):
        check_same_logits("test", lambda x: model(x) / 0, lambda x: model(x) / 0, preprocess)


def test_arguments_json_cannot_hold_are_refused(tmp_path):
    trained = _trained("vit_tiny_patch16_224", depth=1, img_size=32, act_layer=nn.ReLU)
    with pytest.raises(ModelError, match="torch-export or onnx"):
        export_model(trained, tmp_path, ["safetensors"])


def test_crop_share_gives_timm_the_resize_back():
    for size in (8, 32, 96, 224, 299):
        for resize in range(size, 2 * size):
            share = crop_share(Preprocess(size, resize, MEAN, STD))
            assert int(size / share) == resize and abs(share - size / resize) < 1e-12
