"""Reports, resumes and checkpoints meet run directories whose JSON is hostile: a page, or one sentence."""

from __future__ import annotations

import copy
import json
import os
import random

import pytest
from fabricated import fabricate

from relatum.errors import CheckpointError, RelatumError
from relatum.report.page import report
from relatum.train.checkpoint import latest_checkpoint
from relatum.train.record import RunDirectory

DEEP = '{"a":' * 100_000
BROKEN = [DEEP, "[1]", '"x"', '{"a": ' + "9" * 10_000 + "}", '{"half', "\0", "nul"]
ODD = [None, True, -1, 10**400, float("nan"), float("inf"), "x", "<b>", [], {}, [[]], [None], {"a": []}, "\ud800"]


@pytest.fixture
def run(tmp_path):
    return fabricate.run(tmp_path, epochs=1, classes=5)


@pytest.mark.parametrize("file", ["scores.json", "manifest.json", "config.toml"])
@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_named(run, file, text):
    if file == "config.toml" and text == "[1]":
        text = "[1"  # the whole is a table of TOML
    (run / file).write_text(text)
    with pytest.raises(CheckpointError, match=file):
        report([run])


def test_broken_lines_of_metrics_are_counted(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(DEEP + "\n[1]\n\0\n" + '{"kind": [1]}\n')
    assert "4 lines of metrics.jsonl" in report([run]).read_text(encoding="utf-8")


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def test_values_of_the_wrong_kind_give_a_page_or_one_error(run):
    rng = random.Random(3)
    whole = json.loads((run / "scores.json").read_text())
    places = [place for place in _places(whole) if place and len(place) < 5]
    drawn = refused = 0
    for _ in range(8):
        changed = copy.deepcopy(whole)
        *way, last = rng.choice(places)
        inner = changed
        for key in way:
            inner = inner[key]
        inner[last] = rng.choice(ODD)
        (run / "scores.json").write_text(json.dumps(changed))
        try:
            assert report([run]).is_file()
            drawn += 1
        except RelatumError:
            refused += 1
    assert drawn and refused


@pytest.mark.parametrize("text", [*BROKEN, "[[]]"], ids=range(8))
def test_an_index_of_checkpoints(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        latest_checkpoint(tmp_path)


def test_an_index_cannot_name_a_pipe_or_a_file_elsewhere(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    names = ["pipe", "/dev/zero", "../secret"]
    (folder / "index.json").write_text(json.dumps([{"file": n, "step": i, "sha256": ""} for i, n in enumerate(names)]))
    assert latest_checkpoint(folder) == (None, []), "what is not called as a checkpoint is none"
    name = "step-000000001.safetensors"
    os.mkfifo(folder / name)
    (folder / "index.json").write_text(json.dumps([{"file": name, "step": 1, "sha256": ""}]))
    with pytest.raises(CheckpointError, match="no file"):  # and nobody waits for its writer
        latest_checkpoint(folder)


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_run_directory_opened_again(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        RunDirectory(tmp_path, {})
