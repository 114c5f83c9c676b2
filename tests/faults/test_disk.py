"""A full disk and a read-only folder: one clear sentence, nothing spoilt, and the same end once there is room again."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from spoilt_runs import assert_same_end, checkpoints, contents, make_photos, train

from relatum.train import load_checkpoint

_HERE = Path(__file__).parent
_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("disk") / "photos")


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("disk") / "whole"
    assert train(photos, out) == 0
    return out


def _child(before: list[str], how: str, photos: Path, whole: Path, work: Path) -> dict:
    path = os.pathsep.join([str(_HERE), *sys.path])
    words = [*before, sys.executable, str(_HERE / "full_disk_child.py"), how, str(photos), str(whole), str(work)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def _assert_refused(answer: dict, *words: str) -> None:
    assert answer["code"] == 2, answer
    assert answer["shown"].count("relatum: error:") == 1
    assert "Traceback" not in answer["shown"]
    for word in words:
        assert word in answer["shown"]


def _assert_stopped_and_continued(found: dict, reason: str, file: str) -> None:
    for key in ("full", "again"):
        _assert_refused(found[key], "cannot write", file, reason, "Check space and permissions.")
    assert found["kept"]
    assert found["left"] == []
    assert found["loads"] == 3
    assert found["then"]["code"] == 0
    assert "after step 3" in found["then"]["shown"]


# -- real file systems -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mounted(photos, whole, tmp_path_factory) -> dict:
    """What a run met on a small file system that filled up, and became read-only in the end."""
    work = tmp_path_factory.mktemp("mounted")
    try:
        allowed = subprocess.run(
            [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(work)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here to mount a small file system with")
    if allowed.returncode:
        pytest.skip(f"this machine does not let us mount a small file system ({allowed.stderr.strip()})")
    return _child(_NAMESPACE, "mounts", photos, whole, work)


def test_a_full_file_system_stops_the_run_and_room_lets_it_end_in_the_same_bits(mounted):
    _assert_stopped_and_continued(mounted, "No space left on device", "step-000000006.safetensors")


def test_no_room_at_all_is_said_before_training(mounted):
    _assert_refused(mounted["no room at all"], "new", "No space left on device")
    assert "epoch" not in mounted["no room at all"]["shown"]


def test_a_read_only_folder_is_said_before_training_and_can_still_be_read(mounted):
    _assert_refused(mounted["read-only"], "cannot write to", "new2: Read-only file system. Choose another --out.")
    _assert_refused(mounted["read-only again"], "cannot write to", "run: Read-only file system.")
    assert mounted["read-only predict"]["code"] == 0


def test_a_limit_on_the_size_of_files_does_the_same(photos, whole, tmp_path):
    """Works without any permission: the system refuses to let a file grow."""
    found = _child([], "limit", photos, whole, tmp_path)
    _assert_stopped_and_continued(found, "File too large", "step-000000006.safetensors")


# -- every file that is written ----------------------------------------------------------------------------------------

# The file, and which of its writes meets the full disk. A checkpoint is there by then, but for the first two.
_WRITES = [
    ("config.json", 1),
    ("manifest.json", 1),
    ("metrics.jsonl", 1),
    ("step-000000003.safetensors", 1),
    ("index.json", 1),
    ("metrics.jsonl", 3),
    ("step-000000006.safetensors", 1),
    ("index.json", 2),
    ("metrics.jsonl", 5),
    ("scores.json", 1),
    ("manifest.json", 4),
]


def _fill_disk_at(patch: pytest.MonkeyPatch, name: str, at: int) -> list[str]:
    """Let the `at`-th time that a file is brought to disk fail, as a file system does that allocates late."""
    real, met = os.fsync, []

    def full(handle: int) -> None:
        target = Path(f"/proc/self/fd/{handle}").readlink().name
        if name in target:
            met.append(target)
            if len(met) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    patch.setattr(os, "fsync", full)
    return met


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to know which file is written")
@pytest.mark.parametrize(("name", "at"), _WRITES, ids=[f"{name} {at}" for name, at in _WRITES])
def test_a_disk_that_is_full_at_any_file_is_one_sentence_and_no_loss(photos, whole, tmp_path, capsys, name, at):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        met = _fill_disk_at(patch, name, at)
        code = train(photos, out)
    shown = capsys.readouterr().err
    assert len(met) == at, "the fault did not happen"
    _assert_refused({"code": code, "shown": shown}, "cannot write", f"{name}: No space left on device")
    assert not list(out.rglob(".*.tmp"))
    for path in checkpoints(out):
        load_checkpoint(path)
    half = [line for line in contents(out).get("metrics.jsonl", b"").splitlines() if not line.endswith(b"}")]
    assert half == []
    assert train(photos, out) == 0
    assert_same_end(out, whole)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_not_be_written_is_said_before_training(photos, tmp_path, capsys, monkeypatch, number):
    """Injected, since permissions do not bind every user that tests run as."""
    out, real = tmp_path / "run", os.open
    out.mkdir()

    def refuse(path, flags, *more, **named):
        if flags & os.O_CREAT and str(path).startswith(str(out)):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    code = train(photos, out)
    answer = {"code": code, "shown": capsys.readouterr().err}
    _assert_refused(answer, f"cannot write to {out}: {os.strerror(number)}. Choose another --out.")
    assert contents(out) == {}
