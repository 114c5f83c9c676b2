"""Two processes on one run directory: the second refuses, having changed nothing; a dead one is in nobody's way."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spoilt_runs import COMMAND, contents, make_photos

from relatum.errors import CheckpointError
from relatum.train import RunDirectory
from relatum.train.lock import LOCK, RunLock


class Holder:
    """A process of our own that holds something until it is told to end."""

    def __init__(self, do: Callable[[], object]) -> None:
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                kept = do()
                os.write(tell, b"1" if kept is not None else b"0")
                time.sleep(120)
            finally:
                os._exit(1)
        os.close(tell)
        assert os.read(ready, 1) == b"1"
        os.close(ready)

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def hold() -> Iterator[Callable[..., Holder]]:
    """Start holders that end with the test."""
    holders: list[Holder] = []

    def start(do: Callable[[], object]) -> Holder:
        holders.append(Holder(do))
        return holders[-1]

    yield start
    for holder in holders:
        try:
            holder.kill()
        except (ProcessLookupError, ChildProcessError):
            continue


# -- the second refuses ------------------------------------------------------------------------------------------------


def test_the_second_process_refuses_by_name_and_changes_nothing(tmp_path, hold):
    out = tmp_path / "run"
    holder = hold(lambda: RunDirectory(out, {"train": {"lr": 0.1}}, "lr = 0.1\n"))
    before = contents(out)
    assert {"config.json", "config.toml", LOCK} <= before.keys()
    words = rf"run is in use by process {holder.pid} on host {socket.gethostname()} since 20..-.*; wait for it, or give"
    with pytest.raises(CheckpointError, match=words):
        RunDirectory(out, {"train": {"lr": 0.2}}, "lr = 0.2\n", allow_changes=True)
    assert contents(out) == before


def test_the_command_refuses_with_code_2(tmp_path):
    """The first is this process; the second a command as a user gives it."""
    photos, out = make_photos(tmp_path / "photos", 3), tmp_path / "run"
    with RunDirectory(out, {}):
        before = contents(out)
        words = [sys.executable, "-m", "relatum", *COMMAND, "--data.root", str(photos), "--out", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert contents(out) == before
    assert done.returncode == 2, done.stderr
    assert f"relatum: error: {out} is in use by process {os.getpid()} on host" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stage_inside_keeps_others_out_of_the_whole_run(tmp_path, hold):
    """`relatum train` with two stages locks the run around both."""
    hold(lambda: (RunLock(tmp_path), RunDirectory(tmp_path / "pretrain", {})))
    for place in (tmp_path, tmp_path / "pretrain"):
        with pytest.raises(CheckpointError, match="is in use by process"):
            RunDirectory(place, {})


def test_reading_needs_no_lock(tmp_path, hold):
    from relatum.report import load_records

    def begin() -> RunDirectory:
        run = RunDirectory(tmp_path, {"train": {"lr": 0.1}}, "")
        run.append_metrics({"kind": "train", "epoch": 1.0, "step": 1, "loss": 1.0})
        run.update_manifest(status="running")
        return run

    hold(begin)
    (record,) = load_records([tmp_path])
    assert record.manifest["status"] == "running"


# -- the dead are in nobody's way --------------------------------------------------------------------------------------


def test_after_kill_9_the_directory_is_free_at_once(tmp_path, hold):
    holder = hold(lambda: RunDirectory(tmp_path, {}))
    with pytest.raises(CheckpointError, match="in use"):
        RunLock(tmp_path)
    holder.kill()
    assert str(holder.pid) in (tmp_path / LOCK).read_text()  # what it left is text, no lock
    with RunLock(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()


def test_an_orphaned_worker_of_a_killed_trainer_does_not_hold_the_lock(tmp_path, hold):
    def train() -> tuple[RunDirectory, int]:
        run = RunDirectory(tmp_path, {})
        worker = os.fork()
        if worker == 0:
            time.sleep(120)
            os._exit(0)
        (tmp_path / "worker").write_text(str(worker))
        return run, worker

    holder = hold(train)
    worker = int((tmp_path / "worker").read_text())
    try:
        with pytest.raises(CheckpointError, match=f"in use by process {holder.pid}"):
            RunLock(tmp_path)
        holder.kill()
        os.kill(worker, 0)  # it lives
        RunLock(tmp_path).close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_worker_that_ends_neither_frees_nor_removes_the_lock_of_its_trainer(tmp_path, hold):
    def train() -> RunDirectory:
        run = RunDirectory(tmp_path, {})
        worker = os.fork()
        if worker == 0:
            run.close()
            os._exit(0)
        os.waitpid(worker, 0)
        return run

    hold(train)
    assert (tmp_path / LOCK).exists()
    with pytest.raises(CheckpointError, match="in use"):
        RunLock(tmp_path)


# -- one process, one lock ---------------------------------------------------------------------------------------------


def _is_free(folder: Path) -> bool:
    """Whether another process could take it."""
    pid = os.fork()
    if pid == 0:
        try:
            RunLock(folder)
            os._exit(0)
        except CheckpointError:
            os._exit(3)
        finally:
            os._exit(4)
    return {0: True, 3: False}[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]


def test_it_is_released_by_close_by_with_and_with_its_object(tmp_path):
    run = RunDirectory(tmp_path, {})
    assert not _is_free(tmp_path)
    run.close()
    run.close()
    assert _is_free(tmp_path)
    with RunDirectory(tmp_path, {}):
        assert not _is_free(tmp_path)
    assert _is_free(tmp_path)
    run = RunDirectory(tmp_path, {})
    assert not _is_free(tmp_path)
    del run
    gc.collect()
    assert _is_free(tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_the_same_process_may_open_it_again_and_the_last_use_frees_it(tmp_path):
    first, second = RunDirectory(tmp_path, {}), RunDirectory(tmp_path / "." / "checkpoints" / "..", {})
    first.close()
    assert not _is_free(tmp_path)
    second.close()
    assert _is_free(tmp_path)


def test_a_directory_that_could_not_be_opened_is_free_although_the_error_is_kept(tmp_path):
    with RunDirectory(tmp_path, {"a": 1}) as run:
        run.update_manifest(status="finished")
    with pytest.raises(Exception, match="a was 1, now 2") as kept:
        RunDirectory(tmp_path, {"a": 2})
    assert kept.tb is not None
    assert _is_free(tmp_path)


def test_a_directory_that_was_deleted_and_made_anew_is_locked_anew(tmp_path):
    out = tmp_path / "run"
    old = RunDirectory(out, {})
    shutil.rmtree(out)
    new = RunDirectory(out, {})
    assert not _is_free(out)
    old.close()
    assert not _is_free(out)
    new.close()
    assert _is_free(out)


def test_programs_that_we_start_do_not_inherit_it(tmp_path):
    run = RunDirectory(tmp_path, {})
    with subprocess.Popen(["sleep", "60"], close_fds=False) as other:
        run.close()
        assert _is_free(tmp_path)
        other.kill()


# -- file systems without locks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_a_warning_has_to_do(tmp_path, monkeypatch, number):
    def refuse(handle, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="on a file system without locks"):
        run = RunDirectory(tmp_path, {})
    run.update_manifest(status="running")
    run.close()


def test_on_a_full_disk_the_lock_holds_without_its_text(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        lock = RunLock(tmp_path)
    assert (tmp_path / LOCK).read_bytes() == b""
    assert not _is_free(tmp_path)
    lock.close()
