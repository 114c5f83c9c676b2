"""kill -9 of a sweep: its runs end with it, and the same command goes on and writes each row once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_compare import TRAINING, assert_same_run, changed, make_photos, newest_step, unfinished_files
from kill_kit import environment, kit

from relatum import stopping
from relatum.errors import ConfigError
from relatum.sweep import record

NAMES = ("recipe-s0", "recipe-s1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("sweep") / "photos")


def _words(photos: Path) -> list[str]:
    """Two runs of one setting, long enough to be killed on their way."""
    shared = changed(TRAINING[1:], "--train.epochs", "12")
    return ["sweep", *shared, "--data.root", str(photos), "--seeds", "0-1", "--out", "all"]


@pytest.fixture(scope="module")
def whole(photos) -> Path:
    """The same runs, started one by one by the commands that the sweep names; it then only writes its tables."""
    code, child = kit().run([*_words(photos), "--dry-run"], photos.parent)
    assert code == 0, child.text("err")
    commands = [shlex.split(line)[1:] for line in child.text("out").splitlines() if line.startswith("relatum train")]
    assert len(commands) == 2
    for command in commands:
        assert kit().run(command, photos.parent)[0] == 0
    code, child = kit().run(_words(photos), photos.parent)
    assert code == 0 and "2 runs, 2 of them finished already" in child.text("err"), child.text("err")
    return photos.parent / "all"


def _rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def _processes(out: Path) -> list[int]:
    """Processes that train into `out`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--out={out}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _wait_until(there, words: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, words
        time.sleep(0.01)


def test_killed_while_a_run_trains_then_between_runs_then_while_the_table_is_written(photos, whole, tmp_path):
    first, second = (tmp_path / "all" / name for name in NAMES)
    relative = Path("all") / NAMES[0]
    child = kit().start(_words(photos), tmp_path)
    _wait_until(lambda: newest_step(first) > 0, "the first run did not begin")
    (process,) = _processes(relative)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (first / "scores.json").exists(), "it was too fast for this test"

    # At once: the new sweep waits for the run that the dead one has left, which saves and ends.
    code, child = kit().run(_words(photos), tmp_path, {"event": "popen", "match": NAMES[1]})
    assert code == -signal.SIGKILL, child.text("err")
    assert process not in _processes(relative) and not second.exists()
    log = (tmp_path / "all" / "logs" / f"{NAMES[0]}.txt").read_text()
    assert "Stopped after step" in log and "Continuing" in log and "Traceback" not in log, log
    assert_same_run(first, whole / NAMES[0])
    assert not (tmp_path / "all" / "results.jsonl").exists()

    trap = {"event": "write", "match": r"results\.jsonl", "half": True}
    code, child = kit().run(_words(photos), tmp_path, trap)
    assert code == -signal.SIGKILL, child.text("err")
    assert_same_run(second, whole / NAMES[1])
    assert unfinished_files(tmp_path / "all") == [".results.jsonl.part"]
    assert not (tmp_path / "all" / "results.jsonl").exists()

    code, child = kit().run(_words(photos), tmp_path)
    assert code == 0 and "2 of them finished already" in child.text("err"), child.text("err")
    assert _rows(tmp_path / "all") == _rows(whole) and [row["run"] for row in _rows(whole)] == list(NAMES)
    assert unfinished_files(tmp_path / "all") == []
    tables = sorted(path.name for path in whole.iterdir() if path.suffix in (".md", ".csv", ".tex"))
    assert tables and all((tmp_path / "all" / name).read_bytes() == (whole / name).read_bytes() for name in tables)


def test_sigterm_to_the_sweep_saves_its_run_and_is_told_to_the_shell(photos, tmp_path):
    run = tmp_path / "all" / NAMES[0]
    child = kit().start(_words(photos), tmp_path)
    _wait_until(lambda: newest_step(run) > 0, "the first run did not begin")
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143, child.text("err")
    assert child.text("out").splitlines()[-1] == f"next: {shlex.join(['relatum', *_words(photos)])}"
    assert _processes(Path("all") / NAMES[0]) == []
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "interrupted" and manifest["steps"] == newest_step(run)
    assert not (tmp_path / "all" / NAMES[1]).exists()


# -- runs follow their sweep -------------------------------------------------------------------------------------------

_PARENT = """
import os, subprocess, sys
from relatum.stopping import PARENT
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, PARENT: str(os.getpid())})
child.wait()
"""
_FOLLOWER = """
import ctypes, os, signal, sys, time
from pathlib import Path
def no_such_library(*_):
    raise OSError
if {without_linux}:
    ctypes.CDLL = no_such_library
signal.signal(signal.SIGTERM, lambda *_: (Path("saved").touch(), sys.exit(0)))
from relatum.stopping import follow_parent
if {late}:
    os.kill(os.getppid(), signal.SIGKILL)
    while os.getppid() == int(os.environ["RELATUM_SWEEP_PID"]):
        time.sleep(0.01)
follow_parent()
Path("begun").write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize(
    "case", [(False, False), (True, False), (False, True)], ids=["Linux", "elsewhere", "a parent that is dead already"]
)
def test_a_run_is_told_when_its_sweep_dies(case, tmp_path):
    without_linux, late = case
    follower = _FOLLOWER.format(without_linux=without_linux, late=late)
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, follower], cwd=tmp_path, env=environment())
    if not late:
        _wait_until(lambda: (tmp_path / "begun").exists(), "the child did not begin")
        time.sleep(0.1)
        assert not (tmp_path / "saved").exists(), "it did not wait for the death of its parent"
        parent.kill()
    assert parent.wait(timeout=60) == -signal.SIGKILL
    _wait_until((tmp_path / "saved").exists, "the run lives on", 30)


def test_without_a_sweep_nothing_is_followed(monkeypatch):
    monkeypatch.delenv(stopping.PARENT, raising=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    stopping.follow_parent()


# -- the lock ----------------------------------------------------------------------------------------------------------


def _hold(folder: Path, owner: int, seconds: float) -> subprocess.Popen:
    """A process that holds the lock as a run of sweep `owner` does."""
    file = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, str(owner).encode())
    held = subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"], pass_fds=(file,))
    os.close(file)
    return held


def _dead_process() -> int:
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


def test_a_new_sweep_waits_for_the_runs_of_a_dead_one(tmp_path):
    held = _hold(tmp_path, _dead_process(), 0.5)
    with record.locked(tmp_path):
        assert held.wait(timeout=30) == 0
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_sweep_that_lives_keeps_others_out_at_once(patience, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "_PATIENCE", patience)
    held = _hold(tmp_path, _dead_process() if patience == 0 else os.getpid(), 60)
    try:
        with pytest.raises(ConfigError, match="another sweep, or a run that it left behind"), record.locked(tmp_path):
            pass
        assert held.poll() is None
    finally:
        held.kill()
        held.wait()
