"""Run directories of strangers: hostile checkpoints and hostile JSON end in one sentence, and nothing runs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save

import relatum
from relatum.cli import EXIT_USER_ERROR, main
from relatum.config import RunConfig
from relatum.config_files import to_toml
from relatum.errors import RelatumError
from relatum.models import create_model
from relatum.sweep.record import read_sweep
from relatum.sweep.results import failed_before
from relatum.sweep.state import has_ended, status_of


def _traps():
    spec = importlib.util.spec_from_file_location("run_traps", Path(__file__).with_name("pickle_traps.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TRAPS


TRAPS = _traps()
DEEP = '{"a":' * 100_000
VALUES = {
    "step": 1,
    "model": {"name": "resnet20-cifar"},
    "class_names": ["cat", "dog"],
    "preprocess": {"image_size": 8, "resize": 8, "mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.fixture(scope="module")
def weights():
    return {f"model.{k}": v for k, v in create_model("resnet20-cifar", 2).state_dict().items()}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "x.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    return path


def _run(folder: Path, content: bytes) -> Path:
    """Write a run directory whose only checkpoint is `content`; its hash is the recorded one."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "step-000000001.safetensors").write_bytes(content)
    entry = {"file": "step-000000001.safetensors", "step": 1, "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "checkpoints" / "index.json").write_text(json.dumps([entry]))
    (folder / "config.toml").write_text(to_toml(RunConfig()))
    return folder


def _checkpoint(weights, text: str) -> bytes:
    return save(weights, metadata={"relatum": text})


def test_the_honest_run_is_loaded_and_predicts(tmp_path, weights, image, capsys):
    run = _run(tmp_path / "run", _checkpoint(weights, json.dumps(VALUES)))
    assert relatum.load(run).class_names == ("cat", "dog")
    assert main(["predict", str(run), str(image)]) == 0
    assert "cat" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["exec", "os.system", "STACK_GLOBAL"])
def test_verbs_refuse_a_run_whose_checkpoint_is_a_trap(tmp_path, image, capsys, name):
    marker = tmp_path / "marker"
    run = _run(tmp_path / "run", TRAPS[name](marker))
    words = [["predict", str(run), str(image)], ["evaluate", str(run)], ["export", str(run), str(tmp_path / "out")]]
    words += [["classifier", str(run)], ["probe", str(run)]]
    for command in words:
        assert main(command) == EXIT_USER_ERROR, command
        shown = capsys.readouterr().err
        assert "relatum: error:" in shown and "Traceback" not in shown
        assert not marker.exists()


HOSTILE = {
    "a list": "[1]",
    "a word": '"x"',
    "nested deeply": DEEP,
    "model a list": json.dumps({**VALUES, "model": [1]}),
    "model unknown": json.dumps({**VALUES, "model": {"name": "os.system"}}),
    "model from a network": json.dumps({**VALUES, "model": {"name": "hf-hub:timm/resnet18.a1_in1k"}}),
    "model from a folder": json.dumps({**VALUES, "model": {"name": "local-dir:/tmp"}}),
    "name a number": json.dumps({**VALUES, "model": {"name": 7}}),
    "classes a number": json.dumps({**VALUES, "class_names": 7}),
    "classes a string": json.dumps({**VALUES, "class_names": "ab"}),
    "classes numbers": json.dumps({**VALUES, "class_names": [1, 2]}),
    "no classes": json.dumps({**VALUES, "class_names": []}),
    "too many classes": json.dumps({**VALUES, "class_names": ["a"] * 3}),
    "preprocess a list": json.dumps({**VALUES, "preprocess": []}),
    "image size infinite": json.dumps(VALUES).replace('"image_size": 8', '"image_size": Infinity'),
    "image size a billion": json.dumps(VALUES).replace('"resize": 8', '"resize": 1000000000'),
    "image size of 5000 digits": json.dumps(VALUES).replace('"image_size": 8', f'"image_size": {"9" * 5000}'),
    "mean of words": json.dumps({**VALUES, "preprocess": {**VALUES["preprocess"], "mean": ["a", "b", "c"]}}),
    "options a list": json.dumps({**VALUES, "model_kwargs": [1]}),
    "options load": json.dumps({**VALUES, "model_kwargs": {"checkpoint_path": "evil.pth"}}),
    "options fetch": json.dumps({**VALUES, "model": {"name": "resnet18"}, "model_kwargs": {"pretrained": True}}),
    "options read": json.dumps({**VALUES, "model_kwargs": {"weights": "evil.pth"}}),
    "options unknown": json.dumps({**VALUES, "model_kwargs": {"evil": 1}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_checkpoint_says_of_its_model_is_held_against_its_form(tmp_path, weights, name):
    run = _run(tmp_path / "run", _checkpoint(weights, HOSTILE[name]))
    with pytest.raises(RelatumError):
        relatum.load(run)


def test_timm_would_have_loaded_the_file_that_the_checkpoint_names(tmp_path, weights):
    """The guard is not vacuous: without it, an option in the header makes timm read a file of the header's choice."""
    import timm

    with pytest.raises(FileNotFoundError):
        timm.create_model("resnet18", num_classes=2, checkpoint_path="evil.pth")
    for option in ("checkpoint_path", "pretrained_cfg", "pretrained", "cache_dir", "pretrained_cfg_overlay"):
        with pytest.raises(relatum.errors.ModelError, match=option):
            create_model("resnet18", 2, **{option: "evil.pth"})


BROKEN = {
    "nested deeply": DEEP,
    "not UTF-8": b'{"status": "\xff\xfe"}',
    "a list": "[[]]",
    "a number": "1",
    "endless number": '{"status": ' + "9" * 10_000 + "}",
    "half": '{"status": "fin',
    "nothing": "",
    "NUL": "\0\0\0",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_sweep_reads_hostile_directories_without_falling(tmp_path, name):
    content = BROKEN[name] if isinstance(BROKEN[name], bytes) else BROKEN[name].encode()
    run = tmp_path / "run"
    run.mkdir()
    for file in ("manifest.json", "scores.json", "config.json", "config.toml"):
        (run / file).write_bytes(content)
    assert not has_ended(run)
    assert status_of(run) in ("waiting", "interrupted")
    (tmp_path / "results.jsonl").write_bytes(content)
    assert failed_before(tmp_path) == set()
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(RelatumError, match=r"sweep\.json"):
        read_sweep(tmp_path)


def test_python_does_give_up_on_the_nested_text():
    with pytest.raises(RecursionError):
        json.loads(DEEP)
