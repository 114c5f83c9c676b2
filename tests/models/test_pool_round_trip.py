"""A fine-tuned model that pools the mean of its patches: from the checkpoint to a stranger's timm."""

from __future__ import annotations

import json
import re

import pytest
import timm
import torch
from PIL import Image

from relatum.config import ModelConfig
from relatum.config_files import to_dict
from relatum.data.preprocess import Preprocess
from relatum.errors import CheckpointError
from relatum.models import create_model
from relatum.models.export import export_model
from relatum.models.export_check import probe_images
from relatum.train.checkpoint import State, load_checkpoint, save_checkpoint
from relatum.trained import load

NAMES = ("ant", "ox", "cat")
SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
PREPROCESS = Preprocess(16, 18, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def finished_run(folder, name, pool, head="linear", **kwargs):
    """The checkpoint of a run whose encoder file has gone; returns the model that was trained."""
    torch.manual_seed(0)
    model = create_model(name, len(NAMES), pool=pool, head=head, scale=7.0, **kwargs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    std = 2e-5 if head == "linear" else -1.0
    settings = ModelConfig(name=name, head=head, scale=7.0, pool=pool, encoder="gone.pth", head_std=std)
    values = {"model": to_dict(settings), "model_kwargs": kwargs, "class_names": list(NAMES)}
    state = State(values={**values, "preprocess": PREPROCESS.to_dict()})
    state.add("model", model.state_dict())
    save_checkpoint(folder / "checkpoints", state, 1)
    return model


@pytest.mark.parametrize(
    ("name", "pool", "kwargs"),
    [
        ("vit_tiny_patch16_224", "avg", SIZES),
        ("vit-pico-p8", "avg", {"img_size": 16}),
        ("vit-pico-p8", "token", {"img_size": 16}),
        ("vit_base_patch16_siglip_224", "avg", SIZES),  # pools by attention unless told otherwise
    ],
)
def test_load_and_export_rebuild_the_pooling(tmp_path, name, pool, kwargs):
    model = finished_run(tmp_path / "run", name, pool, **kwargs)
    trained = load(tmp_path / "run")
    images = probe_images(PREPROCESS, 3)
    with torch.no_grad():
        expected = model(images)
        assert torch.equal(trained.model(images), expected)
        [result] = export_model(trained, tmp_path / "out", ["safetensors"])
        stranger = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
        assert torch.allclose(stranger(images), expected, atol=1e-6)
    assert result.max_difference <= 1e-6
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert stranger.global_pool == config["global_pool"] == config["model_args"]["global_pool"] == pool
    assert f"global_pool='{pool}'" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_a_cosine_head_on_the_mean_is_built_by_the_code_of_the_readme(tmp_path, monkeypatch):
    model = finished_run(tmp_path / "run", "vit_tiny_patch16_224", "avg", "cosine", **SIZES)
    [result] = export_model(load(tmp_path / "run"), tmp_path, ["safetensors"])
    assert result.max_difference <= 1e-6
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "global_pool='avg'" in text
    Image.linear_gradient("L").resize((16, 16)).convert("RGB").save(tmp_path / "photo.jpg", format="PNG")
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), found)
    with torch.no_grad():
        expected = model(torch.from_numpy(found["read_image"]("photo.jpg")))
    assert torch.allclose(found["logits"], expected, atol=1e-5)


def test_without_its_pooling_the_weights_would_not_fit(tmp_path):
    finished_run(tmp_path / "run", "vit-pico-p8", "avg", img_size=16)
    path = next((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    state = load_checkpoint(path)
    del state.values["model"]["pool"]  # as in runs older than the setting: the model's own pooling
    save_checkpoint(tmp_path / "run" / "checkpoints", state, 2)
    with pytest.raises(CheckpointError, match="do not fit"):
        load(tmp_path / "run")
