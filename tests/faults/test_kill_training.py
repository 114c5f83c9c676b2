"""kill -9 of a training at every place: the same command again ends in the same bits, order and rows.

One configuration has everything at once: momentum, moving average, mixup, deferred re-weighting that sets in half-way,
a relation with dropout, an evaluation and a checkpoint after each epoch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from kill_compare import (
    EPOCH,
    STEPS,
    TRAINING,
    assert_same_run,
    changed,
    make_photos,
    newest_step,
    rows,
    tensors,
    unfinished_files,
)
from kill_kit import Child, environment, is_place, kit, placed


@dataclass
class Whole:
    """A training that nobody touched."""

    run: Path
    photos: Path
    child: Child | None = None

    def command(self, options: dict[str, str]) -> list[str]:
        """The command for a run called `run` in the working directory."""
        words: list = [*TRAINING, "--data.root", self.photos, "--out", "run"]
        for option, value in options.items():
            words = changed(words, option, value)
        return words


def _whole(folder: Path, options: dict[str, str] | None = None) -> Whole:
    whole = Whole(folder / "run", make_photos(folder / "photos"))
    code, whole.child = kit().run(whole.command(options or {}), folder)
    assert code == 0, whole.child.text("err")
    return whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Whole:
    return _whole(tmp_path_factory.mktemp("whole"))


def _resume_and_compare(child: Child, whole: Whole, folder: Path, options: dict[str, str] | None = None) -> Child:
    """Run the command again and compare everything; the steps after the last checkpoint are done twice."""
    code, again = kit().run(whole.command(options or {}), folder)
    assert code == 0, again.text("err")
    assert child.samples[: again.begun_at] + again.samples == whole.child.samples
    assert_same_run(folder / "run", whole.run)
    return again


def test_the_training_has_everything_and_none_of_it_is_idle(whole, tmp_path):
    assert len(whole.child.samples) == STEPS and [row["step"] for row in rows(whole.run)][-1] == STEPS
    parts = {name.partition(".")[0] for name in tensors(whole.run)}
    assert parts == {"model", "ema", "optimizer", "rng"} and any("momentum" in name for name in tensors(whole.run))
    changes = {"--objective.drw-start": "0.75", "--data.mixup": "0", "--train.ema": "0.3", "--train.momentum": "0.8"}
    for option, value in changes.items():
        words = changed(TRAINING, option, value)
        code, child = kit().run([*words, "--data.root", whole.photos, "--out", option[2:]], tmp_path)
        assert code == 0, child.text("err")
        assert tensors(tmp_path / option[2:]) != tensors(whole.run)


# -- one kill ----------------------------------------------------------------------------------------------------------


def _checkpoints(run: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in run.glob("checkpoints/*.safetensors"))


def _length_of_unfinished(run: Path, name: str) -> int:
    (only,) = run.glob(f"checkpoints/.{name}.*.tmp")
    return only.stat().st_size


def _half_a_checkpoint(run: Path) -> None:
    whole = (run / "checkpoints" / "step-000000004.safetensors").stat().st_size
    assert abs(_length_of_unfinished(run, "step-000000008.safetensors") - whole / 2) < 64
    assert _checkpoints(run) == [4]


def _a_whole_temporary_file(run: Path) -> None:
    whole = (run / "checkpoints" / "step-000000004.safetensors").stat().st_size
    assert abs(_length_of_unfinished(run, "step-000000008.safetensors") - whole) < 128
    assert _checkpoints(run) == [4]


def _a_checkpoint_that_the_index_does_not_know(run: Path) -> None:
    assert _checkpoints(run) == [4, 8] and newest_step(run) == 4
    assert _length_of_unfinished(run, "index.json") > 0


def _half_an_index(run: Path) -> None:
    _a_checkpoint_that_the_index_does_not_know(run)
    (text,) = (path.read_text() for path in run.glob("checkpoints/.index.json.*.tmp"))
    with pytest.raises(ValueError):
        json.loads(text)


def _one_checkpoint_too_many(run: Path) -> None:
    assert _checkpoints(run) == [4, 8, 12] and newest_step(run) == 12


def _rows_without_their_evaluation(run: Path) -> None:
    assert [(row["kind"], row["step"]) for row in rows(run)] == [("train", 4), ("eval", 4), ("train", 8)]


def _all_but_the_scores(run: Path) -> None:
    assert newest_step(run) == STEPS and not (run / "scores.json").exists()
    assert json.loads((run / "manifest.json").read_text())["status"] == "running"


def _scores_but_no_end(run: Path) -> None:
    assert (run / "scores.json").exists() and unfinished_files(run)
    assert json.loads((run / "manifest.json").read_text())["status"] == "running"


def _nothing_but_settings(run: Path) -> None:
    assert not (run / "checkpoints" / "index.json").exists() and not (run / "config.json").exists()


PLACES = {
    "while the settings are written": (
        {"event": "fsync", "match": r"config\.json", "half": True},
        _nothing_but_settings,
    ),
    "in a step before the first checkpoint": ({"event": "backward", "nth": 2}, lambda run: _at(run, 0)),
    "in a step, before the gradients": ({"event": "backward", "nth": 7}, lambda run: _at(run, 4)),
    "in a step, before the weights change": ({"event": "step", "nth": 10}, lambda run: _at(run, 8)),
    "in a step, weights changed and average not": ({"event": "stepped", "nth": 15}, lambda run: _at(run, 12)),
    "in an evaluation": ({"event": "infer", "nth": 4}, _rows_without_their_evaluation),
    "in the last evaluation": ({"event": "infer", "nth": 8}, _all_but_the_scores),
    "while a temporary file is written": ({"event": "fsync", "match": r"step-0*8\.", "half": True}, _half_a_checkpoint),
    "after fsync before rename": ({"event": "replace", "match": r"step-0*8\."}, _a_whole_temporary_file),
    "after rename before the index": (
        {"event": "fsync", "match": r"index\.json", "nth": 2},
        _a_checkpoint_that_the_index_does_not_know,
    ),
    "while the index is written": ({"event": "fsync", "match": r"index\.json", "nth": 2, "half": True}, _half_an_index),
    "while an old one is rotated out": ({"event": "unlink", "match": r"step-0*4\."}, _one_checkpoint_too_many),
    "after the last checkpoint, before the scores": ({"event": "replace", "match": "scores"}, _all_but_the_scores),
    "while the end is written": (
        {"event": "fsync", "match": r"manifest\.json", "nth": "last", "half": True},
        _scores_but_no_end,
    ),
}


def _at(run: Path, step: int) -> None:
    assert newest_step(run) == step


@pytest.mark.parametrize("place", PLACES)
def test_killed(place, whole, tmp_path):
    trap, look = PLACES[place]
    code, child = kit().run(whole.command({}), tmp_path, placed(trap, whole.child))
    assert code == -signal.SIGKILL, child.text("err")
    assert is_place(child.last_event, trap)
    look(tmp_path / "run")
    _resume_and_compare(child, whole, tmp_path)


# -- many kills --------------------------------------------------------------------------------------------------------


def test_killed_again_and_again_at_places_drawn_by_chance(whole, tmp_path):
    draw, events, samples, kills = random.Random(1), len(whole.child.events), [], []
    code = -signal.SIGKILL
    while code != 0:
        trap = {"event": "any", "nth": draw.randrange(events // 5, 2 * events // 5)} if len(kills) < 6 else None
        code, child = kit().run(whole.command({}), tmp_path, trap)
        samples = samples[: child.begun_at] + child.samples
        assert code in (0, -signal.SIGKILL), child.text("err")
        kills += [child.last_event] if code else []
    assert len(kills) > 2 and len({event.partition(" ")[0] for event in kills}) > 1
    assert samples == whole.child.samples
    assert_same_run(tmp_path / "run", whole.run)


# -- loader processes --------------------------------------------------------------------------------------------------

FROM_DISK = {"--data.memory": "never", "--data.workers": "2"}


@pytest.fixture(scope="module")
def whole_from_disk(tmp_path_factory) -> Whole:
    return _whole(tmp_path_factory.mktemp("disk"), FROM_DISK)


def _group(pgid: int) -> list[int]:
    """Processes of a group that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it has just ended
            continue
        if int(group) == pgid and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("place", ["in a step, before the gradients", "in an evaluation"])
def test_killed_with_loader_processes(place, whole_from_disk, tmp_path):
    trap, look = PLACES[place]
    code, child = kit().run(whole_from_disk.command(FROM_DISK), tmp_path, trap)
    assert code == -signal.SIGKILL, child.text("err")
    left = _group(child.pid)
    assert left, "there was no loader process: the test shows nothing"
    look(tmp_path / "run")
    # At once, while loader processes of the dead run may still be there.
    _resume_and_compare(child, whole_from_disk, tmp_path, FROM_DISK)
    deadline = time.monotonic() + 30
    while _group(child.pid):
        assert time.monotonic() < deadline, f"loader processes live on: {_group(child.pid)}"
        time.sleep(0.1)


def test_the_number_of_loader_processes_may_change_after_a_kill(whole_from_disk, tmp_path):
    code, child = kit().run(whole_from_disk.command(FROM_DISK), tmp_path, {"event": "stepped", "nth": 6})
    assert code == -signal.SIGKILL
    _resume_and_compare(child, whole_from_disk, tmp_path, {**FROM_DISK, "--data.workers": "0"})


# -- without the server ------------------------------------------------------------------------------------------------


def test_a_program_started_by_the_shell_is_killed_and_resumed_alike(whole, tmp_path):
    words = whole.command({})
    program = subprocess.Popen(
        [sys.executable, "-m", "relatum", *words], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while newest_step(tmp_path / "run") < EPOCH:
            assert program.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.kill(program.pid, signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    assert not (tmp_path / "run" / "scores.json").exists(), "it was too fast for this test"
    code, again = kit().run(words, tmp_path)
    assert code == 0 and again.begun_at >= EPOCH, again.text("err")
    assert_same_run(tmp_path / "run", whole.run)
