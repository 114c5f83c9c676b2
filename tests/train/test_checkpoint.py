"""Checkpoints: written whole or not at all, two kept, and nothing in them can run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from relatum.errors import CheckpointError
from relatum.train import load_checkpoint, save_checkpoint
from relatum.train.checkpoint import INDEX, State, latest_checkpoint, write_atomically
from relatum.train.snapshot import flatten_optimizer, restore_optimizer


def _state(value: float = 1.0) -> State:
    state = State(values={"value": value, "nested": {"list": [1, None, "ü"]}})
    state.add("model", {"weight": torch.full((2, 3), value), "count": torch.tensor(7)})
    return state


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# -- round trip --------------------------------------------------------------------------------------------------------


def test_tensors_and_values_come_back_exactly(tmp_path):
    state = _state(1 / 3)
    layout = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    state.add("other", {"image": layout, "half": torch.randn(3).bfloat16(), "double": torch.randn(3).double()})
    back = load_checkpoint(save_checkpoint(tmp_path, state, 5))
    assert back.values == state.values
    assert back.tensors.keys() == state.tensors.keys()
    for name, tensor in state.tensors.items():
        assert torch.equal(tensor, back.tensors[name])
        assert tensor.dtype == back.tensors[name].dtype
    assert set(back.part("model")) == {"weight", "count"}
    assert torch.equal(back.part("other")["image"], layout)
    assert back.part("mod") == {}


def test_a_state_does_not_change_with_the_model_it_was_taken_from():
    weight, state = torch.ones(2), State()
    state.add("model", {"weight": weight})
    weight.zero_()
    assert torch.equal(state.part("model")["weight"], torch.ones(2))


def test_tensors_that_share_memory_are_kept_apart(tmp_path):
    shared, state = torch.randn(4), State()
    state.add("model", {"a": shared, "b": shared, "part": shared[:2]})
    back = load_checkpoint(save_checkpoint(tmp_path, state, 1)).part("model")
    assert torch.equal(back["a"], back["b"])
    assert torch.equal(back["part"], shared[:2])


# -- how many are kept -------------------------------------------------------------------------------------------------


def test_two_are_kept_and_nothing_but_safetensors_and_json(tmp_path):
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, _state(step), step)
        assert len(list(tmp_path.glob("*.safetensors"))) == min(step, 2)
    assert _files(tmp_path) == {"step-000000003.safetensors", "step-000000004.safetensors", INDEX}
    state, problems = latest_checkpoint(tmp_path)
    assert state.values["value"] == 4
    assert problems == []


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    save_checkpoint(tmp_path, _state(), 1)
    (tmp_path / ".step-000000002.safetensors.99.tmp").write_bytes(b"half")
    (tmp_path / "step-000000002.safetensors").write_bytes(b"written, but never entered into the index")
    assert latest_checkpoint(tmp_path)[0].values["value"] == 1
    save_checkpoint(tmp_path, _state(), 3)
    assert _files(tmp_path) == {"step-000000001.safetensors", "step-000000003.safetensors", INDEX}


def test_after_a_step_back_later_checkpoints_are_forgotten(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, _state(step), step)
    save_checkpoint(tmp_path, _state(2.5), 2)
    assert latest_checkpoint(tmp_path)[0].values["value"] == 2.5


# -- failures ----------------------------------------------------------------------------------------------------------


def _no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace"), (Path, "open")])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path, monkeypatch, owner, name):
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _no_space)
        with pytest.raises(CheckpointError, match=r"cannot write .*file.json: No space left on device"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert _files(tmp_path) == {"file.json"}
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")])
def test_a_failed_checkpoint_leaves_the_one_before(tmp_path, monkeypatch, owner, name):
    save_checkpoint(tmp_path, _state(1.0), 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _no_space)
        with pytest.raises(CheckpointError):
            save_checkpoint(tmp_path, _state(2.0), 2)
    state, problems = latest_checkpoint(tmp_path)
    assert (state.values["value"], problems) == (1.0, [])


def test_the_data_is_on_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    """The order that a power cut needs: file, rename, folder."""
    calls, sync, replace = [], os.fsync, Path.replace

    def note_sync(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def note_replace(self, target):
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_atomically(tmp_path / "file", b"x")
    assert calls == ["file", "rename", "folder"]


def test_a_place_that_cannot_be_written_is_a_checkpoint_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Check space and permissions"):
        save_checkpoint(tmp_path / "file" / "checkpoints", _state(), 1)


# -- files that are not checkpoints ------------------------------------------------------------------------------------


class _Bomb:
    def __reduce__(self):
        return (os.mkdir, (os.environ["RELATUM_TEST_BOMB"],))


def test_a_pickle_in_disguise_is_refused_and_never_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RELATUM_TEST_BOMB", str(tmp_path / "exploded"))
    data = pickle.dumps(_Bomb())
    pickle.loads(data)
    (tmp_path / "exploded").rmdir()  # the pickle does explode where it is loaded as one
    path = tmp_path / "step-000000001.safetensors"
    for content in (data, b"\x80\x02" + data):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a readable relatum checkpoint"):
            load_checkpoint(path)
    torch.save({"model": _Bomb()}, path)
    with pytest.raises(CheckpointError, match="not a readable relatum checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "exploded").exists()


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "noise.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_foreign_and_missing_files_are_named(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match=r"foreign.safetensors is not a readable relatum checkpoint"):
        load_checkpoint(tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "missing.safetensors")


@pytest.mark.parametrize("text", ["{half", "3", "[3]", '[{"file": "x"}]'])
def test_an_unreadable_index_is_named_and_the_files_speak_for_themselves(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=r"index.json cannot be read .* No checkpoint is left"):
        latest_checkpoint(tmp_path)
    (tmp_path / INDEX).unlink()
    assert latest_checkpoint(tmp_path) == (None, [])
    save_checkpoint(tmp_path, _state(), 1)
    (tmp_path / INDEX).write_text(text)
    state, problems = latest_checkpoint(tmp_path)
    assert state.values["value"] == 1
    assert "index.json cannot be read" in problems[0]


def test_the_hash_in_the_index_is_that_of_the_file(tmp_path):
    path = save_checkpoint(tmp_path, _state(), 1)
    (entry,) = json.loads((tmp_path / INDEX).read_text())
    assert entry == {"file": path.name, "step": 1, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_the_hash_in_the_header_is_that_of_the_file_with_zeros_in_its_place(tmp_path):
    path = save_checkpoint(tmp_path, _state(), 1)
    with safe_open(path, framework="pt") as file:
        written = file.metadata()["sha256"]
    assert hashlib.sha256(path.read_bytes().replace(written.encode(), b"0" * 64)).hexdigest() == written


def _of_an_earlier_version(folder: Path, value: float, step: int) -> Path:
    """A checkpoint without a hash of its own, and an index that has it."""
    state, path = _state(value), folder / f"step-{step:09d}.safetensors"
    save_file(state.tensors, path, metadata={"relatum": json.dumps(state.values)})
    index = json.loads((folder / INDEX).read_text()) if (folder / INDEX).exists() else []
    index.append({"file": path.name, "step": step, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    (folder / INDEX).write_text(json.dumps(index))
    return path


def test_checkpoints_of_earlier_versions_are_vouched_for_by_the_index(tmp_path):
    for step in (1, 2):
        path = _of_an_earlier_version(tmp_path, step, step)
    assert load_checkpoint(path).values["value"] == 2
    assert latest_checkpoint(tmp_path)[1] == []
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the weights change, and the file stays readable
    path.write_bytes(data)
    state, problems = latest_checkpoint(tmp_path)
    assert (state.values["value"], len(problems)) == (1, 1)
    assert "its hash is not the recorded one" in problems[0]
    save_checkpoint(tmp_path, _state(), 3)
    assert _files(tmp_path) == {"step-000000001.safetensors", "step-000000003.safetensors", INDEX}


def test_without_an_index_a_checkpoint_of_an_earlier_version_is_taken_with_a_word_of_doubt(tmp_path):
    _of_an_earlier_version(tmp_path, 1, 1)
    (tmp_path / INDEX).unlink()
    state, problems = latest_checkpoint(tmp_path)
    assert state.values["value"] == 1
    assert "index.json is missing" in problems[0]
    assert "could not be checked for damage" in problems[1]


# -- optimizers --------------------------------------------------------------------------------------------------------

_OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "sgd without momentum": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95)),
}


def _model_and_optimizer(make):
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    groups = [
        {"params": [model.weight], "lr_scale": 1.0, "weight_decay": 0.1},
        {"params": [model.bias], "lr_scale": 0.5},
    ]
    return model, make(groups)


def _train(model, optimizer, seeds):
    for seed in seeds:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("make", _OPTIMIZERS.values(), ids=_OPTIMIZERS.keys())
def test_an_optimizer_goes_on_as_if_never_stopped(tmp_path, make):
    straight, first = _model_and_optimizer(make), _model_and_optimizer(make)
    _train(*straight, range(6))
    _train(*first, range(3))
    state = State()
    tensors, state.values["optimizer"] = flatten_optimizer(first[1])
    state.add("optimizer", tensors)
    back = load_checkpoint(save_checkpoint(tmp_path, state, 3))

    model, optimizer = _model_and_optimizer(make)
    model.load_state_dict(first[0].state_dict())
    forgetful = _model_and_optimizer(make)
    forgetful[0].load_state_dict(first[0].state_dict())
    restore_optimizer(optimizer, back.part("optimizer"), back.values["optimizer"])
    assert [group["lr_scale"] for group in optimizer.param_groups] == [1.0, 0.5]
    _train(model, optimizer, range(3, 6))
    _train(*forgetful, range(3, 6))
    assert torch.equal(model.weight, straight[0].weight)
    assert torch.equal(model.bias, straight[0].bias)
    carries_state = bool(tensors)
    assert torch.equal(forgetful[0].weight, straight[0].weight) != carries_state


def test_other_parameter_groups_are_refused():
    model, optimizer = _model_and_optimizer(_OPTIMIZERS["sgd"])
    _train(model, optimizer, range(1))
    tensors, values = flatten_optimizer(optimizer)
    with pytest.raises(CheckpointError, match="other parameter groups"):
        restore_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), tensors, values)
