"""kill -9 of a run with two stages, within each and at every file between them: both stages end in the same bits."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from kill_compare import assert_same_run, make_photos, newest_step
from kill_kit import Child, is_place, kit, placed

RECIPE = """# LiVT in miniature
[data]
image_size = 16
batch_size = 5
workers = 0
normalise = "half"
mixup = 0.5

[model]
name = "vit-pico-p4"
pool = "avg"
drop_path = 0.1

[pretrain]
method = "mae"
epochs = 2
batch_size = 5
warmup_epochs = 1.0
eval_every = 1
pictures = 2
neighbours = 2
lr = 1e-2

[objective]
name = "balanced-bce"

[train]
epochs = 2
optimizer = "adamw"
lr = 1e-3
ema = 0.8
decay_all = false
precision = "float32"
device = "cpu"
threads = 1
"""
STAGE_STEPS = 6  # of each stage: three an epoch


@dataclass
class Whole:
    """A run that nobody touched."""

    folder: Path
    child: Child

    @property
    def words(self) -> list:
        return ["train", self.folder / "tiny.toml", "--data.root", self.folder / "photos", "--out", "run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Whole:
    folder = tmp_path_factory.mktemp("stages")
    make_photos(folder / "photos")
    (folder / "tiny.toml").write_text(RECIPE)
    whole = Whole(folder, None)
    code, whole.child = kit().run(whole.words, folder)
    assert code == 0, whole.child.text("err")
    assert len(whole.child.samples) == 2 * STAGE_STEPS
    return whole


def _first(run: Path) -> dict[str, bool]:
    names = ("scores.json", "encoder.safetensors", "probe.json")
    return {name: (run / "pretrain" / name).exists() for name in names}


def _within_the_first(run: Path) -> None:
    assert newest_step(run / "pretrain") == 3 and not any(_first(run).values())


def _finished_without_encoder(run: Path) -> None:
    assert json.loads((run / "pretrain" / "manifest.json").read_text())["status"] == "finished"
    assert _first(run) == {"scores.json": True, "encoder.safetensors": False, "probe.json": False}


def _half_an_encoder(run: Path) -> None:
    _finished_without_encoder(run)
    assert len(list((run / "pretrain").glob(".encoder.safetensors.*.tmp"))) == 1


def _encoder_without_probe(run: Path) -> None:
    assert _first(run) == {"scores.json": True, "encoder.safetensors": True, "probe.json": False}


def _first_stage_only(run: Path) -> None:
    assert all(_first(run).values()) and not (run / "config.json").exists()


def _within_the_second(run: Path) -> None:
    assert all(_first(run).values()) and newest_step(run) == 3


PLACES = {
    "within the first stage": ({"event": "backward", "nth": 5}, _within_the_first),
    "after its end, before the encoder": (
        {"event": "replaced", "match": r"pretrain/manifest\.json", "nth": "last"},
        _finished_without_encoder,
    ),
    "while the encoder is written": ({"event": "replace", "match": "encoder", "half": True}, _half_an_encoder),
    "before the neighbours are asked": ({"event": "replaced", "match": "encoder"}, _encoder_without_probe),
    "while their answer is written": (
        {"event": "fsync", "match": r"probe\.json", "half": True},
        _encoder_without_probe,
    ),
    "between the stages": ({"event": "fsync", "match": r"run/\.config\.json", "half": True}, _first_stage_only),
    "within the second stage": ({"event": "stepped", "nth": STAGE_STEPS + 5}, _within_the_second),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed(place, whole, tmp_path):
    trap, look = PLACES[place]
    code, child = kit().run(whole.words, tmp_path, placed(trap, whole.child))
    assert code == -signal.SIGKILL, child.text("err")
    assert is_place(child.last_event, trap)
    look(tmp_path / "run")
    code, again = kit().run(whole.words, tmp_path)
    assert code == 0, again.text("err")
    assert_both_stages_are_the_same(tmp_path / "run", whole.folder / "run")
    assert _steps_that_count(child, again) == whole.child.samples


def _steps_that_count(child: Child, again: Child) -> list[str]:
    """Samples of all steps; those after the checkpoint that the second process went on from count once, there."""
    done_before = STAGE_STEPS if "run/pretrain is finished already" in again.text("err") else 0
    return child.samples[: done_before + again.begun_at] + again.samples


def assert_both_stages_are_the_same(run: Path, whole: Path) -> None:
    assert_same_run(run / "pretrain", whole / "pretrain")
    assert_same_run(run, whole)
    for name in ("encoder.safetensors", "probe.json", "pictures/epoch-0001.png", "pictures/epoch-0002.png"):
        assert (run / "pretrain" / name).read_bytes() == (whole / "pretrain" / name).read_bytes(), name


def test_killed_in_both_stages_and_between(whole, tmp_path):
    for place in ("within the first stage", "while the encoder is written", "between the stages"):
        assert kit().run(whole.words, tmp_path, PLACES[place][0])[0] == -signal.SIGKILL
    second = {"event": "backward", "nth": 5}
    assert kit().run(whole.words, tmp_path, second)[0] == -signal.SIGKILL
    _within_the_second(tmp_path / "run")
    code, child = kit().run(whole.words, tmp_path)
    assert code == 0, child.text("err")
    assert_both_stages_are_the_same(tmp_path / "run", whole.folder / "run")
