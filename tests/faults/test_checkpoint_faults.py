"""Damaged checkpoints: never loaded, always named, passed over where an older one is whole, and never overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spoilt_runs import assert_same_end, checkpoints, contents, flip, make_photos, train

from relatum import load
from relatum.cli import main
from relatum.errors import CheckpointError
from relatum.train import load_checkpoint, save_checkpoint
from relatum.train.checkpoint import INDEX, State, latest_checkpoint


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("faults") / "photos")


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("faults") / "whole"
    assert train(photos, out) == 0
    return out


@pytest.fixture(scope="module")
def stopped(photos, tmp_path_factory) -> Path:
    """A run that ended after its seventh step of nine, with checkpoints at 6 and 7."""
    out = tmp_path_factory.mktemp("faults") / "stopped"
    assert train(photos, out, "--train.max-steps", "7") == 0
    assert [path.name for path in checkpoints(out)] == ["step-000000006.safetensors", "step-000000007.safetensors"]
    return out


@pytest.fixture
def run(stopped, tmp_path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


# -- no damaged file is ever taken for a good one ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(stopped, tmp_path_factory) -> tuple[bytes, Path]:
    """The bytes of a real checkpoint, and a place to write them to, changed, without an index beside them."""
    return checkpoints(stopped)[-1].read_bytes(), tmp_path_factory.mktemp("sample") / "step-000000007.safetensors"


def _assert_refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step-000000007.safetensors is (damaged|not a readable relatum)"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"No checkpoint is left"):
        latest_checkpoint(path.parent)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_change_of_a_byte_goes_unnoticed(sample, data):
    """Places are drawn from the whole file and, as often, from its header; there is no byte that may change."""
    content, path = sample
    header = 8 + int.from_bytes(content[:8], "little")
    end = data.draw(st.sampled_from([len(content), header]))
    place, mask = data.draw(st.integers(0, end - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :])
    _assert_refused(path)


def test_the_same_file_unchanged_is_taken(sample):
    content, path = sample
    path.write_bytes(content)
    assert load_checkpoint(path).values["position"]["step"] == 7
    assert latest_checkpoint(path.parent)[0].values["position"]["step"] == 7


def test_every_byte_around_the_hash_counts(sample):
    content, path = sample
    around = content.index(b'"sha256":"')
    for place in (*range(8), *range(around - 3, around + 80)):
        path.write_bytes(content)
        flip(path, place)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([b"", b"\0", b"more"]))
def test_neither_a_shorter_nor_a_longer_file_is_taken(sample, length, tail):
    content, path = sample
    short = length % len(content)
    path.write_bytes(content[:short] + tail)
    _assert_refused(path)
    path.write_bytes(content + (tail or b" "))
    _assert_refused(path)


# -- the checkpoint before it ------------------------------------------------------------------------------------------

_DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped tensor": flip,
    "flipped header": lambda path: flip(path, 300),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES.keys())
@pytest.mark.parametrize("index", ["index", "no index"])
def test_the_newest_spoilt_the_one_before_is_taken_and_said(run, damage, index):
    newest = checkpoints(run)[-1]
    damage(newest)
    if index == "no index":
        (run / "checkpoints" / INDEX).unlink()
    before = contents(run)
    state, problems = latest_checkpoint(run / "checkpoints")
    assert state.values["position"]["step"] == 6
    if index == "no index":
        assert "index.json is missing" in problems.pop(0)
    if index == "index" or damage is not Path.unlink:
        (problem,) = problems
        assert newest.name in problem
        assert problem.endswith("Falling back to the checkpoint before it.")
    assert contents(run) == before  # looking changes nothing


def test_a_run_with_a_spoilt_checkpoint_and_without_an_index_ends_as_if_nothing_had_happened(
    run, whole, photos, capsys
):
    flip(checkpoints(run)[-1])
    (run / "checkpoints" / INDEX).write_text("{half")
    assert train(photos, run) == 0
    shown = capsys.readouterr().err
    assert "index.json cannot be read" in shown
    assert "step-000000007.safetensors is damaged: its hash is not the recorded one. Falling back" in shown
    assert "after step 6" in shown
    assert_same_end(run, whole)
    index = json.loads((run / "checkpoints" / INDEX).read_text())
    assert [entry["step"] for entry in index] == [6, 9]


def test_predictions_of_a_spoilt_run_come_from_the_checkpoint_before_and_say_so(run, photos, capsys):
    older = load(checkpoints(run)[0]).model.state_dict()
    newer = load(checkpoints(run)[1]).model.state_dict()
    assert any(not torch.equal(older[name], newer[name]) for name in older)
    flip(checkpoints(run)[-1])
    with pytest.warns(UserWarning, match=r"step-000000007.* Falling back to the checkpoint before it"):
        found = load(run).model.state_dict()
    assert all(torch.equal(older[name], found[name]) for name in older)
    for command in (["predict", str(run), str(photos / "ant")], ["evaluate", str(run)]):
        assert main(command) == 0
        assert "Falling back to the checkpoint before it" in capsys.readouterr().err


# -- nothing left ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES.keys())
def test_with_all_spoilt_every_verb_refuses_by_name_and_touches_nothing(run, photos, damage, capsys):
    for path in checkpoints(run):
        damage(path)
    before = contents(run)
    commands = [
        ["predict", str(run), str(photos / "ant")],
        ["evaluate", str(run)],
        ["export", str(run), str(run.parent / "out")],
    ]
    for words in (*commands, None):
        code = train(photos, run) if words is None else main(words)
        shown = capsys.readouterr().err
        assert code == 2
        assert shown.count("relatum: error:") == 1
        assert "step-000000006.safetensors" in shown
        assert "step-000000007.safetensors" in shown
        assert f"delete {run} to start anew" in shown
    after = contents(run)
    for name in ("manifest.json", "config.json", "config.toml"):  # the command that is on record may be another
        before.pop(name), after.pop(name)
    assert after == before


# -- what the next save does with a damaged file -----------------------------------------------------------------------


def _state(value: float) -> State:
    state = State(values={"value": value})
    state.add("model", {"weight": torch.full((4,), value)})
    return state


def _spoilt_folder(folder: Path) -> Path:
    """Checkpoints 10 and 12, of which 12 is damaged."""
    for step in (10, 12):
        path = save_checkpoint(folder, _state(step), step)
    flip(path)
    return path


def test_an_earlier_step_leaves_the_damaged_file_where_it_is(tmp_path):
    path = _spoilt_folder(tmp_path)
    spoilt = path.read_bytes()
    for step in (10, 11):
        save_checkpoint(tmp_path, _state(step), step)
    assert path.read_bytes() == spoilt
    state, problems = latest_checkpoint(tmp_path)
    assert (state.values["value"], len(problems)) == (11, 1)


def test_the_same_step_takes_its_place(tmp_path):
    path = _spoilt_folder(tmp_path)
    save_checkpoint(tmp_path, _state(12.5), 12)
    assert load_checkpoint(path).values["value"] == 12.5
    assert [p.name[-14:-12] for p in sorted(tmp_path.glob("*.safetensors"))] == ["10", "12"]


def test_a_later_step_removes_it_and_not_the_good_one_before_it(tmp_path):
    path = _spoilt_folder(tmp_path)
    newest = save_checkpoint(tmp_path, _state(15), 15)
    assert not path.exists()
    flip(newest)
    assert latest_checkpoint(tmp_path)[0].values["value"] == 10


def test_a_file_that_went_bad_behind_our_back_is_not_among_the_two_that_are_kept(tmp_path):
    """The file was written by this process, which need not read it again unless it has changed."""
    for step in (1, 2):
        path = save_checkpoint(tmp_path, _state(step), step)
    flip(path)
    save_checkpoint(tmp_path, _state(3), 3)
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
        "step-000000001.safetensors",
        "step-000000003.safetensors",
    ]


def test_what_a_killed_process_left_is_gone_before_space_is_needed(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, _state(1), 1)
    left = tmp_path / ".step-000000002.safetensors.99.tmp"
    left.write_bytes(b"half")
    opened = Path.open

    def look(self, *args, **kwargs):
        assert self.suffix != ".tmp" or not left.exists()
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", look)
    save_checkpoint(tmp_path, _state(2), 2)
    assert not left.exists()


def test_files_of_other_names_are_left_alone(tmp_path):
    mine = tmp_path / "step-best.safetensors"
    mine.write_bytes(b"somebody's own")
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, _state(step), step)
    assert mine.read_bytes() == b"somebody's own"
    assert latest_checkpoint(tmp_path)[0].values["value"] == 3
