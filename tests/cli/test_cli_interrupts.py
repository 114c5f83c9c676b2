"""Ctrl-C: exit code 130, a sentence, and the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from relatum.recipes import demo


@pytest.fixture(autouse=True)
def _ctrl_c_works():
    """A test session in the background may have been started with Ctrl-C switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_training_keeps_the_run_and_the_same_command_continues(relatum, training, photos, tmp_path):
    words = training(photos, "run", "--train.epochs", 5000, "--train.eval-every", 0, "--train.max-steps", 0)
    program = subprocess.Popen([sys.executable, "-m", "relatum.cli", *words], stderr=subprocess.PIPE, text=True)
    try:
        _wait_for_metrics(program, tmp_path / "run" / "metrics.jsonl")
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 130
    assert "Traceback" not in err and err.splitlines()[-1].endswith("Rerun the same command to continue.")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted" and manifest["steps"] > 0

    # the number of steps may change between two commands: it ends this test soon
    code, out, err = relatum(*words, "--train.max-steps", manifest["steps"] + 1)
    assert code == 0 and f"Continuing run after step {manifest['steps']}." in err and "run (val)" in out


def _wait_for_metrics(program, path):
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size):
        assert program.poll() is None, program.stderr.read()
        assert time.monotonic() < deadline, "training did not begin"
        time.sleep(0.05)


def _press_ctrl_c(*_, **__):
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("Ctrl-C was ignored")


def test_ctrl_c_in_inspect_and_predict_is_one_line(relatum, finished, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("relatum.data.inspect.probe_source", _press_ctrl_c)
    assert relatum("inspect", photos) == (130, "", "relatum: interrupted\n")
    monkeypatch.setattr("relatum.trained.Trained.probabilities", _press_ctrl_c)
    words = ("predict", finished, photos, "--format", "csv", "--out", "rows.csv")
    assert relatum(*words) == (130, "", "relatum: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_ends_with_130_and_no_report(relatum, monkeypatch):
    class Interrupted:
        status = "interrupted"

    begun = []
    monkeypatch.setattr(demo, "run", lambda config, recipe, out, display: begun.append(recipe) or Interrupted())
    assert relatum("demo") == (130, "", "")
    assert begun == ["shapes-lt/cross-entropy"]
