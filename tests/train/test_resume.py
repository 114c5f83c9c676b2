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
from tiny import (
    EVERYTHING,
    SignalAt,
    Talk,
    assert_as_if_nothing_happened,
    fit_everything,
    loaders,
    newest,
    quiet,
    rows,
    task,
)

from relatum.errors import CheckpointError
from relatum.train import RunDirectory, checkpoint, fit

# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [(3,), (5,), (1, 2, 8, 10, 13), (15,)],
    ids=["within an epoch", "between epochs", "again and again", "at the very end"],
)
def test_after_ctrl_c_the_run_ends_in_the_same_bits_and_rows(tmp_path, whole, steps):
    handler = signal.getsignal(signal.SIGINT)
    for step in steps:
        stopped = fit_everything(tmp_path, SignalAt(step))
        assert (stopped.status, stopped.steps, stopped.scores) == ("interrupted", step, {})
        assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "interrupted"
        assert signal.getsignal(signal.SIGINT) is handler
    assert fit_everything(tmp_path).status == "finished"
    assert_as_if_nothing_happened(tmp_path, whole)


def test_interrupted_runs_are_not_the_same_by_chance(tmp_path, whole):
    """What the comparison rests on can fail: each of these makes other bits."""
    assert not torch.equal(_other(tmp_path / "a", seed=4), newest(whole)["model.fc.weight"])
    assert not torch.equal(_other(tmp_path / "b", mixup=0.0), newest(whole)["model.fc.weight"])
    assert not torch.equal(_other(tmp_path / "c", config=replace(EVERYTHING, seed=4)), newest(whole)["model.fc.weight"])


def _other(out, **changes):
    fit_everything(out, **changes)
    return newest(out)["model.fc.weight"]


def test_sigterm_stops_as_cleanly(tmp_path, whole):
    assert fit_everything(tmp_path, SignalAt(7, number=signal.SIGTERM)).steps == 7
    assert fit_everything(tmp_path).status == "finished"
    assert_as_if_nothing_happened(tmp_path, whole)


def test_a_second_ctrl_c_stops_at_once_and_loses_no_checkpoint(tmp_path, whole):
    class Twice(SignalAt):
        def step(self, done, info, eta_seconds):
            if done in self.steps:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit_everything(tmp_path, Twice(8))
    assert signal.getsignal(signal.SIGINT) is before
    assert fit_everything(tmp_path).status == "finished"
    assert_as_if_nothing_happened(tmp_path, whole)


def test_with_accumulation_a_resumed_epoch_has_the_same_groups(tmp_path):
    config = replace(EVERYTHING, accumulate=2, save_every=2)
    with pytest.warns(UserWarning, match="accumulation"):
        fit_everything(tmp_path / "whole", config=config)
        assert fit_everything(tmp_path / "cut", SignalAt(5), config=config).status == "interrupted"
        assert (
            fit_everything(tmp_path / "cut", config=config).steps == 9
        )  # three steps an epoch: 2 + 2 + 1 micro-batches
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


def test_an_epoch_with_many_steps_writes_its_rows_at_the_same_steps(tmp_path):
    config = replace(EVERYTHING, epochs=1)
    options = {"images": 488, "config": config}  # 61 steps: a row at 50 and one at the end
    _fit_long_epoch(tmp_path / "whole", **options)
    assert _fit_long_epoch(tmp_path / "cut", SignalAt(20), **options).steps == 20
    _fit_long_epoch(tmp_path / "cut", **options)
    assert [row["step"] for row in rows(tmp_path / "whole", kind="train")] == [50, 61]
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


def _fit_long_epoch(out, display=None, *, images, config):
    return fit(task(), loaders(images, epochs=1), config, out=out, display=display or quiet())


# -- killed ------------------------------------------------------------------------------------------------------------

_KILLED = """
import signal, sys
sys.path.insert(0, {folder!r})
import torch
torch.set_num_threads({threads})
from tiny import SignalAt, fit_everything
fit_everything({out!r}, SignalAt(8, number=signal.SIGKILL))
"""


def test_kill_9_and_the_same_command_again_give_the_same_bits(tmp_path, whole):
    words = {"folder": str(Path(__file__).parent), "out": str(tmp_path), "threads": torch.get_num_threads()}
    done = subprocess.run([sys.executable, "-c", _KILLED.format(**words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "running"
    shown = Talk()
    assert fit_everything(tmp_path, shown).status == "finished"
    assert "after step 5" in shown.said[0]
    assert_as_if_nothing_happened(tmp_path, whole)


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
            fit_everything(tmp_path)
    assert fit_everything(tmp_path).status == "finished"
    assert_as_if_nothing_happened(tmp_path, whole)


def test_a_crash_before_the_first_checkpoint_leaves_no_row_twice(tmp_path, whole):
    class Crashing(SignalAt):
        def step(self, done, info, eta_seconds):
            if done in self.steps:
                raise Crash

    config = replace(EVERYTHING, save_every=3)
    with pytest.raises(Crash):
        fit_everything(tmp_path / "cut", Crashing(12), config=config)
    assert len(rows(tmp_path / "cut")) == 4
    fit_everything(tmp_path / "cut", config=config)
    assert rows(tmp_path / "cut") == rows(whole)


def test_a_half_written_row_is_dropped(tmp_path, whole):
    fit_everything(tmp_path, SignalAt(7))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    fit_everything(tmp_path)
    assert_as_if_nothing_happened(tmp_path, whole)


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
    fit_everything(tmp_path, SignalAt(12))
    damage(tmp_path / "checkpoints" / "step-000000012.safetensors")
    shown = Talk()
    assert fit_everything(tmp_path, shown).status == "finished"
    assert "step-000000012.safetensors" in shown.said[0]
    assert "Falling back to the checkpoint before it" in shown.said[0]
    assert "after step 10" in shown.said[1]
    assert_as_if_nothing_happened(tmp_path, whole)


def test_with_no_whole_checkpoint_left_it_refuses_and_touches_nothing(tmp_path):
    fit_everything(tmp_path, SignalAt(12))
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        _flip_a_byte(path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"step-000000012.*step-000000010.*delete .* to start anew"):
        fit_everything(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_row_that_was_lost_moves_no_other(tmp_path, whole):
    """A damaged row among those of the checkpoint: the curve lacks it, and no row is there twice later."""
    fit_everything(tmp_path, SignalAt(12))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"damaged\n", *lines[2:]]))
    with pytest.warns(UserWarning, match="has lost 1 of its first"):
        fit_everything(tmp_path, SignalAt(13))
    fit_everything(tmp_path)
    assert rows(tmp_path) == [row for number, row in enumerate(rows(whole)) if number != 1]
