from __future__ import annotations

import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from relatum.errors import ModelError
from relatum.models import CifarResNet, load_weights, replace_classifier


@pytest.fixture
def source():
    torch.manual_seed(1)
    return CifarResNet(20, 4)


@pytest.fixture
def target():
    torch.manual_seed(2)
    return CifarResNet(20, 4)


def same(a, b):
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_safetensors_round_trip(tmp_path, source, target):
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    assert not same(source, target)
    assert load_weights(target, tmp_path / "w.safetensors") == ()
    assert same(source, target)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {"model_state": {f"module._orig_mod.{k}": v for k, v in s.items()}, "loss": 0.5},
        lambda s: {"state_dict": {f"model.{k}": v for k, v in s.items()}},
    ],
)
def test_torch_files_wrappers_and_prefixes(tmp_path, source, target, suffix, wrap):
    torch.save(wrap(source.state_dict()), tmp_path / f"w{suffix}")
    load_weights(target, tmp_path / f"w{suffix}")
    assert same(source, target)


def test_a_prefix_of_the_models_own_is_kept(tmp_path):
    inner = nn.Sequential()
    inner.add_module("module", nn.Linear(2, 2))
    outer = nn.Sequential()
    outer.add_module("module", nn.Linear(2, 2))
    torch.save(inner.state_dict(), tmp_path / "w.pt")
    load_weights(outer, tmp_path / "w.pt")
    assert same(inner, outer)


class Malicious:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["torch", "legacy", "bare"])
def test_a_pickle_that_runs_code_is_refused(tmp_path, target, kind):
    trace, path = tmp_path / "trace", tmp_path / "w.pth"
    content = {"state_dict": Malicious(trace)}
    if kind == "bare":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "torch")
    if kind == "bare":
        pickle.loads(path.read_bytes())  # the trap works …
        assert trace.is_dir()
        trace.rmdir()
    with pytest.raises(ModelError, match=r"refused.*safetensors"):
        load_weights(target, path)
    assert not trace.exists()


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "w.pt"])
def test_damaged_files(tmp_path, target, name):
    path = tmp_path / name
    if name == "w.pt":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/y", "no weights")
    else:
        path.write_bytes(b"no weights at all, only words" * 20)
    with pytest.raises(ModelError, match=name):
        load_weights(target, path)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"state_dict": {}}, {"a": torch.ones(1), "b": 2}])
def test_files_without_a_table_of_tensors(tmp_path, target, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ModelError, match="no table of tensors"):
        load_weights(target, tmp_path / "w.pth")


def test_missing_file_and_unknown_ending(tmp_path, target):
    with pytest.raises(ModelError, match="does not exist"):
        load_weights(target, tmp_path / "w.pth")
    (tmp_path / "w.npz").write_bytes(b"")
    with pytest.raises(ModelError, match=r"unknown ending.*\.safetensors"):
        load_weights(target, tmp_path / "w.npz")


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_a_head_for_other_classes_is_left_out_by_name(tmp_path, source, target, head):
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    replace_classifier(target, head, 9)
    own = target.fc.weight.clone()
    with pytest.warns(UserWarning, match=r"fc\.weight.*left out"):
        assert set(load_weights(target, tmp_path / "w.safetensors")) == {"fc.weight", "fc.bias"}
    assert torch.equal(target.fc.weight, own)
    assert torch.equal(target.conv1.weight, source.conv1.weight)


def test_missing_and_unexpected_names_are_listed_and_nothing_is_changed(tmp_path, source, target):
    tensors = dict(source.state_dict())
    tensors["extra.weight"] = tensors.pop("layer1.0.conv1.weight")
    save_file(tensors, tmp_path / "w.safetensors")
    before = target.conv1.weight.clone()
    with pytest.raises(ModelError, match=r"missing: layer1\.0\.conv1\.weight; unexpected: extra\.weight"):
        load_weights(target, tmp_path / "w.safetensors")
    assert torch.equal(target.conv1.weight, before)
    with pytest.warns(UserWarning, match=r"in part.*extra\.weight"):
        load_weights(target, tmp_path / "w.safetensors", strict=False)
    assert torch.equal(target.conv1.weight, source.conv1.weight)


@pytest.mark.parametrize("strict", [True, False])
def test_another_shape_or_another_model_is_always_refused(tmp_path, source, target, strict):
    tensors = dict(source.state_dict())
    tensors["conv1.weight"] = torch.zeros(8, 3, 3, 3)
    save_file(tensors, tmp_path / "shape.safetensors")
    with pytest.raises(ModelError, match=r"conv1\.weight \(8, 3, 3, 3\) in the file"):
        load_weights(target, tmp_path / "shape.safetensors", strict=strict)
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="does not fit"):
        load_weights(target, tmp_path / "other.safetensors", strict=strict)
