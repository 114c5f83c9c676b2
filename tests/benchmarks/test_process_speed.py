"""Threads against processes: both sides get the same work, and the first steps do not count."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest


@pytest.fixture(scope="module")
def process_speed(script):
    return script("process_speed")


def setting(words, name):
    return words[words.index(f"--{name}") + 1]


def test_processes_share_the_batch_and_the_cores(process_speed, tmp_path):
    work = process_speed.Work("cifar100-lt-100/fast-10min", "images", 128, 4, 30)
    alone, shared = (process_speed.words(work, processes, tmp_path) for processes in (1, 4))
    assert "torch.distributed.run" not in alone and "--nproc-per-node=4" in shared
    assert (setting(alone, "data.batch-size"), setting(shared, "data.batch-size")) == ("128", "32")
    assert (setting(alone, "train.threads"), setting(shared, "train.threads")) == ("4", "1")
    for words in (alone, shared):
        assert setting(words, "data.root") == "images" and setting(words, "minutes") == "0"
        assert int(setting(words, "train.max-steps")) == process_speed.WARM + 30
        assert "--stages" not in words
    assert "--data.root" not in process_speed.words(replace(work, data=""), 1, tmp_path)
    with pytest.raises(SystemExit, match="128 images a step cannot be shared evenly by 3 processes; set --batch"):
        process_speed.words(work, 3, tmp_path)


def test_of_a_recipe_with_pretraining_that_is_measured(process_speed, tmp_path):
    work = process_speed.Work("livt/cifar100-lt-100", "", 128, 2, 30)
    words = process_speed.words(work, 2, tmp_path)
    assert setting(words, "stages") == "pretrain" and setting(words, "pretrain.batch-size") == "64"
    assert setting(words, "pretrain.eval-every") == "0"


def test_the_first_steps_do_not_count(process_speed, tmp_path):
    rows = [
        {"kind": "train", "step": 50, "images_per_second": 1.0},
        {"kind": "eval", "step": 80},
        {"kind": "train", "step": 80, "images_per_second": 300.0},
        {"kind": "train", "step": 90, "images_per_second": 100.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert process_speed.speed_in(tmp_path) == 200.0


def test_rounds_take_turns_and_end_in_a_ratio(process_speed, monkeypatch, capsys):
    asked = []

    def stand_in(work, processes):
        asked.append(processes)
        return 100.0 * processes

    monkeypatch.setattr(process_speed, "speed", stand_in)
    process_speed.main(["shapes-lt", "--cores", "2", "--rounds", "2", "--data", ""])
    assert asked == [1, 2, 2, 1]
    shown = capsys.readouterr().out
    assert "one process, 2 threads     median     100 images/s" in shown
    assert "processes / threads 2.000 (rounds 2.000 to 2.000, n=2)" in shown
    with pytest.raises(SystemExit):
        process_speed.main(["shapes-lt", "--cores", "1"])
    assert "nothing to choose" in capsys.readouterr().err
