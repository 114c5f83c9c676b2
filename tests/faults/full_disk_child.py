"""Run by test_disk.py in a process of its own: a small file system that fills up, and one that is read-only.

Arguments: how ("mounts" in a namespace where mounting is allowed, or "limit" for a limit on the size of files), the
photos, the finished run to compare with, a working folder. It prints one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import subprocess
import sys
from pathlib import Path

from spoilt_runs import assert_same_end, checkpoints, train

from relatum import load
from relatum.cli import main


def call(function, *words) -> dict:
    """Exit code and what was shown."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        code = function(*words)
    return {"code": code, "shown": shown.getvalue()}


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Write a file until `leave` bytes are free."""
    import shutil

    ballast = folder / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(folder).free - leave))
    return ballast


def interrupted(photos: Path, out: Path) -> dict:
    """The first checkpoint, from which all goes on."""
    first = call(train, photos, out, "--train.max-steps", "3")
    assert first["code"] == 0, first
    return {path.name: path.read_bytes() for path in checkpoints(out)}


def full(photos: Path, out: Path, whole: Path, stop, free) -> dict:
    """Stop the run by a full disk, look at what is left, make room, end the run."""
    kept = interrupted(photos, out)
    stop()
    result = {"full": call(train, photos, out), "again": call(train, photos, out)}
    result["kept"] = {path.name: path.read_bytes() for path in checkpoints(out)} == kept
    result["left"] = [path.name for path in out.rglob(".*.tmp")]
    result["loads"] = len(load(out).class_names)
    free()
    result["then"] = call(train, photos, out)
    assert_same_end(out, whole)
    return result


def on_mounts(photos: Path, whole: Path, work: Path) -> dict:
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(work))
    ballast: list[Path] = []
    out = work / "run"
    size = checkpoint_size(whole)
    result = full(photos, out, whole, lambda: ballast.append(fill(work, size // 2)), lambda: ballast[0].unlink())
    none = fill(work, 0)
    result["no room at all"] = call(train, photos, work / "new")
    none.unlink()
    mount("-o", "remount,ro", str(work))
    result["read-only"] = call(train, photos, work / "new2")
    result["read-only again"] = call(train, photos, out, "--train.max-steps", "4")
    result["read-only predict"] = call(main, ["predict", str(out), str(photos / "ant")])
    return result


def on_limit(photos: Path, whole: Path, work: Path) -> dict:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    size = checkpoint_size(whole)
    return full(photos, work / "run", whole, lambda: limit(size // 2), lambda: limit(hard))


def checkpoint_size(whole: Path) -> int:
    return checkpoints(whole)[-1].stat().st_size


if __name__ == "__main__":
    how, *places = sys.argv[1:]
    found = {"mounts": on_mounts, "limit": on_limit}[how](*map(Path, places))
    print("RESULT " + json.dumps(found))
