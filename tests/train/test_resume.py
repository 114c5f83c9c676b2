"""Stopped anywhere and run again: the same bits, the same rows, or one clear sentence why not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TRAIN, Net, SignalAt, Talk, assert_same_bits, loaders, newest, quiet, rows, task

from relatum.config import RunConfig
from relatum.config_files import to_dict
from relatum.errors import CheckpointError, ConfigError
from relatum.train import RunDirectory, checkpoint, fit

# Everything that carries state between steps: momentum, averages, dropout in model and relation, mixing, BatchNorm.
CONFIG = replace(TRAIN, ema=0.9, clip=5.0, seed=3)


def _fit(out, display=None, config=CONFIG, **data):
    """A run of three epochs of five steps with everything on."""
    built = task(relation=True, dropout=0.4)
    options = {"augment": "weak", "mixup": 0.4, "seed": 3} | data
    return fit(built, loaders(**options), config, out=out, display=display or quiet())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert _fit(out).status == "finished"
    return out


def _assert_as_if_nothing_happened(out: Path, whole: Path) -> None:
    assert_same_bits(newest(out), newest(whole))
    assert rows(out) == rows(whole)
    assert (out / "scores.json").read_text() == (whole / "scores.json").read_text()
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [(3,), (5,), (1, 2, 8, 10, 13), (15,)],
    ids=["within an epoch", "between epochs", "again and again", "at the very end"],
)
def test_after_ctrl_c_the_run_ends_in_the_same_bits_and_rows(tmp_path, whole, steps):
    handler = signal.getsignal(signal.SIGINT)
    for step in steps:
        stopped = _fit(tmp_path, SignalAt(step))
        assert (stopped.status, stopped.steps, stopped.scores) == ("interrupted", step, {})
        assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "interrupted"
        assert signal.getsignal(signal.SIGINT) is handler
    assert _fit(tmp_path).status == "finished"
    _assert_as_if_nothing_happened(tmp_path, whole)


def test_interrupted_runs_are_not_the_same_by_chance(tmp_path, whole):
    """What the comparison rests on can fail: each of these makes other bits."""
    assert not torch.equal(_other(tmp_path / "a", seed=4), newest(whole)["model.fc.weight"])
    assert not torch.equal(_other(tmp_path / "b", mixup=0.0), newest(whole)["model.fc.weight"])
    assert not torch.equal(_other(tmp_path / "c", config=replace(CONFIG, seed=4)), newest(whole)["model.fc.weight"])


def _other(out, **changes):
    _fit(out, **changes)
    return newest(out)["model.fc.weight"]


def test_sigterm_stops_as_cleanly(tmp_path, whole):
    assert _fit(tmp_path, SignalAt(7, number=signal.SIGTERM)).steps == 7
    assert _fit(tmp_path).status == "finished"
    _assert_as_if_nothing_happened(tmp_path, whole)


def test_a_second_ctrl_c_stops_at_once_and_loses_no_checkpoint(tmp_path, whole):
    class Twice(SignalAt):
        def step(self, done, info):
            if done in self.steps:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _fit(tmp_path, Twice(8))
    assert signal.getsignal(signal.SIGINT) is before
    assert _fit(tmp_path).status == "finished"
    _assert_as_if_nothing_happened(tmp_path, whole)


def test_with_accumulation_a_resumed_epoch_has_the_same_groups(tmp_path):
    config = replace(CONFIG, accumulate=2, save_every=2)
    with pytest.warns(UserWarning, match="accumulation"):
        _fit(tmp_path / "whole", config=config)
        assert _fit(tmp_path / "cut", SignalAt(5), config=config).status == "interrupted"
        assert _fit(tmp_path / "cut", config=config).steps == 9  # three steps an epoch: 2 + 2 + 1 micro-batches
    _assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


def test_an_epoch_with_many_steps_writes_its_rows_at_the_same_steps(tmp_path):
    config = replace(CONFIG, epochs=1)
    options = {"images": 488, "config": config}  # 61 steps: a row at 50 and one at the end
    _fit_many(tmp_path / "whole", **options)
    assert _fit_many(tmp_path / "cut", SignalAt(20), **options).steps == 20
    _fit_many(tmp_path / "cut", **options)
    assert [row["step"] for row in rows(tmp_path / "whole", kind="train")] == [50, 61]
    _assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


def _fit_many(out, display=None, *, images, config):
    return fit(task(), loaders(images, epochs=1), config, out=out, display=display or quiet())


# -- killed ------------------------------------------------------------------------------------------------------------

_KILLED = """
import signal, sys
sys.path.insert(0, {folder!r})
import torch
torch.set_num_threads({threads})
from test_resume import _fit
from tiny import SignalAt
_fit({out!r}, SignalAt(8, number=signal.SIGKILL))
"""


def test_kill_9_and_the_same_command_again_give_the_same_bits(tmp_path, whole):
    words = {"folder": str(Path(__file__).parent), "out": str(tmp_path), "threads": torch.get_num_threads()}
    done = subprocess.run([sys.executable, "-c", _KILLED.format(**words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "running"
    shown = Talk()
    assert _fit(tmp_path, shown).status == "finished"
    assert "after step 5" in shown.said[0]
    _assert_as_if_nothing_happened(tmp_path, whole)


class Crash(Exception):
    """Stands for the end of the process: nothing after it runs."""


def _crash_in(monkeypatch, owner, name, at):
    """Let the `at`-th call of a function raise before it does anything."""
    real, calls = getattr(owner, name), []

    def crash(*args, **kwargs):
        calls.append(None)
        if len(calls) == at:
            raise Crash
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, crash)


# How often a run calls each: rows of three epochs, its status, and three checkpoints with their index.
_WRITES = [(RunDirectory, "append_metrics", 6), (RunDirectory, "update_manifest", 2), (RunDirectory, "write_scores", 1)]
_WRITES += [(checkpoint, "write_atomically", 6)]


@pytest.mark.parametrize(("owner", "name", "at"), [(o, n, at) for o, n, calls in _WRITES for at in range(1, calls + 1)])
def test_a_crash_at_any_write_leaves_no_row_twice_and_the_same_bits(tmp_path, whole, monkeypatch, owner, name, at):
    with monkeypatch.context() as patch:
        _crash_in(patch, owner, name, at)
        with pytest.raises(Crash):
            _fit(tmp_path)
    assert _fit(tmp_path).status == "finished"
    _assert_as_if_nothing_happened(tmp_path, whole)


def test_a_crash_before_the_first_checkpoint_leaves_no_row_twice(tmp_path, whole):
    class Crashing(SignalAt):
        def step(self, done, info):
            if done in self.steps:
                raise Crash

    config = replace(CONFIG, save_every=3)
    with pytest.raises(Crash):
        _fit(tmp_path / "cut", Crashing(12), config=config)
    assert len(rows(tmp_path / "cut")) == 4
    _fit(tmp_path / "cut", config=config)
    assert rows(tmp_path / "cut") == rows(whole)


def test_a_half_written_row_is_dropped(tmp_path, whole):
    _fit(tmp_path, SignalAt(7))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    _fit(tmp_path)
    _assert_as_if_nothing_happened(tmp_path, whole)


# -- damaged checkpoints -----------------------------------------------------------------------------------------------


def _flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)


_DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped": _flip_a_byte,
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES.keys())
def test_a_damaged_newest_checkpoint_is_passed_over_and_said(tmp_path, whole, damage):
    _fit(tmp_path, SignalAt(12))
    damage(tmp_path / "checkpoints" / "step-000000012.safetensors")
    shown = Talk()
    assert _fit(tmp_path, shown).status == "finished"
    assert "step-000000012.safetensors" in shown.said[0]
    assert "Falling back to the checkpoint before it" in shown.said[0]
    assert "after step 10" in shown.said[1]
    _assert_as_if_nothing_happened(tmp_path, whole)


def test_with_no_whole_checkpoint_left_it_starts_anew_and_says_so(tmp_path, whole):
    _fit(tmp_path, SignalAt(12))
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        _flip_a_byte(path)
    shown = Talk()
    assert _fit(tmp_path, shown).status == "finished"
    assert "hash" in shown.said[0]
    assert "starting from the beginning" in shown.said[2]
    _assert_as_if_nothing_happened(tmp_path, whole)


# -- finished, changed, impossible -------------------------------------------------------------------------------------


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    first = _fit(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    built = task(relation=True, dropout=0.4)
    built.forward = lambda batch: pytest.fail("trained again")
    again = fit(built, loaders(augment="weak", mixup=0.4, seed=3), CONFIG, out=tmp_path, display=quiet())
    assert again.status == "finished"
    assert (again.scores, again.steps) == (first.scores, first.steps)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_max_steps_ended_goes_on_when_it_is_raised(tmp_path, whole):
    for steps in (3, 5, 9):
        done = _fit(tmp_path, config=replace(CONFIG, max_steps=steps))
        assert (done.status, done.steps) == ("finished", steps)
    assert _fit(tmp_path, config=replace(CONFIG, max_steps=9)).steps == 9
    assert _fit(tmp_path).steps == 15
    _assert_as_if_nothing_happened(tmp_path, whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.2}, "train.lr was 0.05, now 0.2"),
        ({"epochs": 4}, "train.epochs was 3, now 4"),
        ({"steps": (0.5,)}, r"train.steps was \[0.8, 0.9\], now \[0.5\]"),
        ({"ema": 0.0}, "train.ema was 0.9, now 0.0"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, changes, words):
    _fit(tmp_path, SignalAt(2))
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match=words):
        _fit(tmp_path, config=replace(CONFIG, **changes))
    assert (tmp_path / "config.json").read_text() == before


def test_settings_that_do_not_matter_may_change(tmp_path):
    config = RunConfig()
    run = RunDirectory(tmp_path, to_dict(config))
    run.update_manifest(status="finished")
    with pytest.raises(ConfigError, match="data.batch_size was 128, now 64"):
        RunDirectory(tmp_path, to_dict(replace(config, data=replace(config.data, batch_size=64))))
    free = replace(
        config,
        out="elsewhere",
        data=replace(config.data, workers=7),
        train=replace(config.train, device="cpu", threads=1, tensorboard=True, max_steps=3),
    )
    assert RunDirectory(tmp_path, to_dict(free)).manifest["status"] == "finished"


def test_settings_may_be_corrected_while_there_is_no_checkpoint(tmp_path):
    RunDirectory(tmp_path, {"data": {"root": "fotos"}}).update_manifest(status="running", command="old")
    run = RunDirectory(tmp_path, {"data": {"root": "photos"}})
    assert json.loads((tmp_path / "config.json").read_text()) == {"data": {"root": "photos"}}
    assert run.manifest == {}


def test_another_model_in_the_same_directory_is_one_clear_error(tmp_path):
    fit(task(), loaders(), replace(TRAIN, epochs=1, save_every=1), out=tmp_path, display=SignalAt(2))
    with pytest.raises(CheckpointError, match="another model or optimizer than this run"):
        fit(task(model=Net(width=6)), loaders(), replace(TRAIN, epochs=1), out=tmp_path, display=quiet())
    with pytest.raises(CheckpointError, match="start a new run directory"):
        fit(task(relation=True), loaders(), replace(TRAIN, epochs=1), out=tmp_path, display=quiet())


def test_an_unwritable_run_directory_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file" / "run", Path("/proc/relatum/run")):
        with pytest.raises(CheckpointError, match="cannot write to"):
            fit(task(), loaders(), TRAIN, out=place, display=quiet())


def test_a_full_disk_while_rows_are_written_is_one_clear_error(tmp_path):
    run = RunDirectory(tmp_path, {})
    run.metrics_file = tmp_path / "checkpoints"  # cannot be opened as a file
    with pytest.raises(CheckpointError, match="cannot write"):
        run.append_metrics({"step": 1})


def test_unreadable_records_are_named(tmp_path):
    RunDirectory(tmp_path, {})
    (tmp_path / "manifest.json").write_text("{half")
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be read"):
        RunDirectory(tmp_path, {})
