"""Asked to stop: the step is finished, the run saved, the shell told by which signal, and the next command named.

Ctrl-C in the verbs that do not train is in tests/cli; several interruptions of one training are in tests/train.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_compare import STEPS, TRAINING, assert_same_run, changed, make_photos, newest_step
from kill_kit import Child, environment, kit
from test_kill_stages import RECIPE

NAMES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("signals") / "my photos")


@pytest.fixture(scope="module")
def whole(photos) -> tuple[Path, Child]:
    code, child = kit().run(_words(photos), photos.parent)
    assert code == 0, child.text("err")
    return photos.parent / "run", child


def _words(photos: Path, *more: object) -> list:
    return [*TRAINING, "--data.root", photos, "--out", "run", *more]


def _next_command(child: Child) -> list[str]:
    """The command that was printed, as a shell reads it."""
    (line,) = (line for line in child.text("out").splitlines() if line.startswith("next: "))
    return shlex.split(line.removeprefix("next: "))


def _stopped(photos: Path, folder: Path, trap: dict, code: int, *more: object) -> Child:
    found, child = kit().run(_words(photos, *more), folder, trap)
    assert found == code and "Traceback" not in child.text("err"), child.text("err")
    assert any(line.startswith("signalled") for line in child.events), "the signal was never sent"
    assert _next_command(child) == ["relatum", *(str(word) for word in _words(photos, *more))]
    return child


def _continue(child: Child, whole: tuple[Path, Child], folder: Path) -> Child:
    """Run the command that was printed; it ends as the run that nobody touched."""
    code, again = kit().run(_next_command(child)[1:], folder)
    assert code == 0, again.text("err")
    assert child.samples[: again.begun_at] + again.samples == whole[1].samples
    assert_same_run(folder / "run", whole[0])
    return again


@pytest.mark.parametrize("number", NAMES, ids=lambda n: n.name)
def test_the_step_is_finished_and_saved(number, photos, whole, tmp_path):
    child = _stopped(photos, tmp_path, {"event": "backward", "nth": 6, "signal": number}, NAMES[number])
    assert newest_step(tmp_path / "run") == 6 == len(child.samples), "the step was not finished, or a further one begun"
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "interrupted"
    assert "Stopped after step 6. Rerun the same command to continue." in child.text("err")
    assert _continue(child, whole, tmp_path).begun_at == 6


def test_sigterm_while_images_are_read(photos, whole, tmp_path):
    child = _stopped(photos, tmp_path, {"event": "image", "nth": 9, "signal": signal.SIGTERM}, 143)
    assert sum(line.startswith("image") for line in child.events) == 9, "it went on reading"
    assert child.text("err").splitlines()[-1] == "relatum: interrupted" and child.samples == []
    _continue(child, whole, tmp_path)


def test_sigterm_in_an_evaluation_loses_nothing_of_it(photos, whole, tmp_path):
    child = _stopped(photos, tmp_path, {"event": "infer", "nth": 3, "signal": signal.SIGTERM}, 143)
    assert newest_step(tmp_path / "run") >= 8
    _continue(child, whole, tmp_path)


def test_sigterm_in_the_last_evaluation_lets_the_run_end(photos, whole, tmp_path):
    child = _stopped(photos, tmp_path, {"event": "infer", "nth": 7, "signal": signal.SIGTERM}, 143)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "finished"
    assert_same_run(tmp_path / "run", whole[0])
    again = kit().run(_next_command(child)[1:], tmp_path)[1]
    assert again.samples == [] and "finished already" in again.text("err")


@pytest.mark.parametrize("trap", [{"event": "backward", "nth": 6}, {"event": "fsync", "match": r"step-0*8\."}])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_asked_twice_it_stops_at_once_and_still_goes_on_later(trap, number, photos, whole, tmp_path):
    child = _stopped(photos, tmp_path, {**trap, "signal": number, "times": 2}, NAMES[number])
    assert newest_step(tmp_path / "run") == 4, "it did not stop at once"
    assert child.text("err").splitlines()[-1] == "relatum: interrupted"
    _continue(child, whole, tmp_path)


def test_a_signal_to_the_whole_group_leaves_loader_processes_at_work(photos, tmp_path):
    """Ctrl-C on a terminal reaches the loader processes too; they must not die before the step is finished."""
    words = changed(_words(photos, "--data.memory", "never"), "--data.workers", "2")
    child = kit().start(words, tmp_path)
    _wait_for(lambda: len(child.samples) > 5, child)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait() == 130 and "Traceback" not in child.text("err"), child.text("err")
    assert 0 < newest_step(tmp_path / "run") == len(child.samples) <= STEPS
    assert f"Stopped after step {len(child.samples)}." in child.text("err")


def _wait_for(there, child: Child) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, child.text("err")
        time.sleep(0.01)


# -- stages ------------------------------------------------------------------------------------------------------------

BETWEEN = {
    "in the first stage": {"event": "step", "nth": 2},
    "while the encoder is written": {"event": "replace", "match": "encoder"},
    "while the neighbours are asked": {"event": "image", "nth": 30},
    "in the second stage": {"event": "step", "nth": 8},
}


@pytest.mark.parametrize("place", BETWEEN)
def test_sigterm_in_a_run_with_two_stages(place, photos, tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    words = ["train", "tiny.toml", "--data.root", str(photos), "--out", "run"]
    code, child = kit().run(words, tmp_path, {**BETWEEN[place], "signal": signal.SIGTERM})
    assert code == 143 and "Traceback" not in child.text("err"), child.text("err")
    assert _next_command(child) == ["relatum", *words] and not (tmp_path / "run" / "scores.json").exists()
    if "stage" in place:
        folder = tmp_path / "run" / ("pretrain" if "first" in place else "")
        assert newest_step(folder) == 2 and (tmp_path / "run" / "config.json").exists() == ("second" in place)
    code, again = kit().run(words, tmp_path)
    assert code == 0 and (tmp_path / "run" / "scores.json").exists(), again.text("err")
    assert len(child.samples) + len(again.samples) == 12, "a step was lost or done twice"


# -- terminals ---------------------------------------------------------------------------------------------------------


def _on_a_terminal(words: list, folder: Path) -> tuple[subprocess.Popen, int]:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *words],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment(), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return program, ours


_TAKE_TERMINAL = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under nohup
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from relatum.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_terminal_that_closes_saves_the_run(photos, tmp_path):
    program, terminal = _on_a_terminal(changed(_words(photos), "--train.epochs", "4000"), tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not newest_step(tmp_path / "run"):
            assert program.poll() is None and time.monotonic() < deadline, os.read(terminal, 9999)
            _drain(terminal)
        os.close(terminal)
        assert program.wait(timeout=60) == 129
    finally:
        program.kill()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted" and manifest["steps"] == newest_step(tmp_path / "run")


def _drain(terminal: int) -> None:
    """Read what is shown, so that the program never waits for us."""
    os.set_blocking(terminal, False)
    try:
        os.read(terminal, 65536)
    except BlockingIOError:
        time.sleep(0.02)


def test_nohup_is_respected(photos, tmp_path):
    child = kit().start(_words(photos), tmp_path, {"event": "step", "nth": 3, "signal": signal.SIGHUP}, nohup=True)
    assert child.wait() == 0, child.text("err")
    assert "signalled 1" in child.events and newest_step(tmp_path / "run") == STEPS
