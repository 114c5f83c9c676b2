"""Child processes: several at a time, failures that stop nobody else, Ctrl-C, and two real trainings."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import base

from relatum.config_files import to_dict
from relatum.sweep import verb
from relatum.sweep.grid import parse_points
from relatum.sweep.plan import plan_jobs
from relatum.sweep.runner import Runner, cores, duration, environment
from relatum.sweep.state import is_finished

COMMAND = (sys.executable, "-S", "-E", str(Path(__file__).with_name("stand_in.py")))


def _jobs(folder, taus):
    start = base(folder)
    jobs = plan_jobs(start, parse_points([f"objective.tau={taus}"], start.config), [0])
    (folder / "expected").mkdir()
    for job in jobs:
        (folder / "expected" / f"{job.name}.json").write_text(json.dumps(to_dict(job.config)))
    return jobs


def _run(folder, jobs, at_once=1):
    said = []
    return Runner(folder, jobs, at_once, said.append, COMMAND).run(), said


def test_a_failure_stops_nobody_else_and_its_last_words_are_kept(tmp_path):
    jobs = _jobs(tmp_path, "0,-1,1")
    outcome, said = _run(tmp_path, jobs)
    assert outcome.finished == ["tau-0-s0", "tau-1-s0"] and not outcome.interrupted
    assert outcome.failed == {"tau--1-s0": ["words to the log", "a line", "the reason, at last"]}
    assert [line.split(":")[0] for line in said] == ["[1/3] tau-0-s0", "[2/3] tau--1-s0", "[3/3] tau-1-s0"]
    assert (tmp_path / "logs" / "tau-0-s0.txt").read_text() == "words to the log\n"
    assert [is_finished(job) for job in jobs] == [True, False, True]


def test_two_run_at_the_same_time_and_share_the_cores(tmp_path, monkeypatch):
    outcome, _ = _run(tmp_path, _jobs(tmp_path, "7,8"), at_once=2)
    assert sorted(outcome.finished) == ["tau-7-s0", "tau-8-s0"]
    assert environment(2, {"A": "b"}) == {"A": "b", "OMP_NUM_THREADS": str(max(1, cores() // 2))}
    assert environment(10_000, {})["OMP_NUM_THREADS"] == "1"
    assert environment(2, {"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}
    assert environment(1, {}) == {}


def test_what_needs_a_failed_first_stage_is_not_started(tmp_path):
    stage, needy, free = _jobs(tmp_path, "-1,0,1")
    outcome, _ = _run(tmp_path, [stage, replace(needy, needs=stage.name), free], at_once=2)
    assert outcome.finished == [free.name]
    assert outcome.failed[needy.name] == [f"not started: it needs {stage.name}, which failed."]
    assert not needy.path.exists()


def test_a_run_waits_for_its_first_stage(tmp_path):
    stage, needy, free = _jobs(tmp_path, "0,1,2")
    outcome, _ = _run(tmp_path, [stage, replace(needy, needs=stage.name), free], at_once=3)
    assert set(outcome.finished) == {stage.name, needy.name, free.name}
    order = [(tmp_path / job.name / "manifest.json").stat().st_mtime_ns for job in (stage, needy)]
    assert order == sorted(order) and outcome.finished.index(stage.name) < outcome.finished.index(needy.name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wish_to_stop_reaches_the_children_and_starts_no_more(tmp_path, number):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    jobs = _jobs(tmp_path, "5,0")

    def press():
        deadline = time.monotonic() + 60
        while not (tmp_path / "tau-5-s0-begun").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    hand = threading.Thread(target=press)
    hand.start()
    outcome, said = _run(tmp_path, jobs)
    hand.join()
    assert outcome.interrupted and outcome.finished == [] and outcome.failed == {} and said == []
    assert (tmp_path / "tau-5-s0-saved").exists() and not (tmp_path / "logs" / "tau-0-s0.txt").exists()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    signal.signal(signal.SIGINT, before)


def test_durations():
    assert [duration(s) for s in (0.4, 59, 125, 3725)] == ["0 s", "59 s", "2 min 05 s", "1 h 02 min"]


# -- the verb --------------------------------------------------------------------------------------------------

TINY = [
    "--data.image-size", "16", "--data.largest", "20", "--data.batch-size", "8", "--relation.name", "none",
    "--train.warmup-epochs", "0", "--train.epochs", "2", "--train.max-steps", "2", "--train.threads", "1",
]  # fmt: skip


def test_a_dry_run_shows_commands_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert verb.sweep(["shapes-lt", "--over", "objective.tau=0,1", "--seeds", "0-1", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[-1] == "4 of 4 to run, in runs/sweep-shapes-lt"
    assert lines[0] == (
        "relatum train shapes-lt --objective.tau=0.0 --train.seed=0 --out=runs/sweep-shapes-lt/tau-0-s0"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_sweep_ends_with_130_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runner, "run", lambda self: replace(self.outcome, interrupted=True))
    assert verb.sweep(["shapes-lt", "--seeds", "0-1", "--out", "here"]) == 130
    assert "The same command continues; relatum sweep here shows" in capsys.readouterr().err
    assert (tmp_path / "here" / "sweep.json").exists()


def test_two_real_runs_then_nothing_is_left_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["shapes-lt", "--over", "objective.name=cross-entropy,ldam", "--out", "real", *TINY]
    assert verb.sweep(words) == 1  # ldam needs a cosine classifier, which this recipe does not have
    shown = capsys.readouterr()
    assert "objective-ldam-s0 failed (log:" in shown.err and "set --model.head cosine" in shown.err
    rows = [json.loads(line) for line in (tmp_path / "real" / "results.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["finished", "failed"]
    true = json.loads((tmp_path / "real" / "objective-cross-entropy-s0" / "scores.json").read_text())["test"]
    assert rows[0]["All"] == true["top1"] and rows[0]["steps"] == 2 and rows[1]["All"] is None
    assert "1 failed" in shown.out and (tmp_path / "real" / "report.html").exists()

    begun = []
    monkeypatch.setattr(Runner, "_child", lambda self, job: begun.append(job.name))
    assert verb.sweep(["shapes-lt", "--over", "objective.name=cross-entropy", "--out", "real", *TINY]) == 0
    assert begun == [] and "1 run, 1 of them finished already." in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "real" / "results.jsonl").read_text().splitlines()]
    assert [(row["run"], row["status"]) for row in rows] == [
        ("objective-ldam-s0", "failed"), ("objective-cross-entropy-s0", "finished"),
    ]  # fmt: skip
