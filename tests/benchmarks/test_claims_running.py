"""Runs of a claim: what has a row is never trained again, what was stopped goes on, what was trained is kept."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time

import pytest
from claims_kit import BENCHMARKS
from claims_tools.adopting import adopt
from claims_tools.rows import checked_rows, drop_rows, run_row
from claims_tools.running import Options, missing, plan, run_claim

from relatum.errors import ConfigError
from relatum.sweep.runner import Runner

TINY = """
[settings]
"data.largest" = 40
"train.epochs" = 2
"train.warmup_epochs" = 0.0
"train.max_steps" = 2
"evaluate.bootstrap" = 0

[[arm]]
name = "plain"
settings = { "relation.name" = "none", "relation.at" = [] }
seeds = "0"

[[arm]]
name = "bf"
seeds = "0-1"
"""


def keys(rows):
    return [(row["arm"], row["seed"]) for row in rows]


def names(todo):
    return [(arm.name, seed) for arm, seed in todo]


@pytest.fixture
def begun(monkeypatch):
    """Names of the jobs that would be started; nothing is."""
    found = []

    def run(self):
        found.extend(job.name for job in self.waiting)
        return self.outcome

    monkeypatch.setattr(Runner, "run", run)
    return found


def test_only_what_has_no_row_is_trained_seed_by_seed(make_claim, make_rows, tmp_path, begun):
    claim = make_claim(TINY)
    options = Options(tmp_path / "work")
    assert names(missing(claim, [], options)) == [("plain", 0), ("bf", 0), ("bf", 1)]
    rows = make_rows(claim, {"bf": {0: 0.2}})
    assert names(missing(claim, rows, options)) == [("plain", 0), ("bf", 1)]
    assert names(missing(claim, rows, Options(tmp_path, only=["bf"]))) == [("bf", 1)]
    assert names(missing(claim, rows, Options(tmp_path, seeds=[0]))) == [("plain", 0)]
    run_claim(claim, options)
    assert begun == ["plain-s0", "bf-s1"]


def test_rows_that_do_not_match_stop_everything(make_claim, make_rows, tmp_path, begun):
    make_rows(make_claim(TINY), {"bf": {0: 0.2}})
    with pytest.raises(ConfigError, match=r"train.epochs was 2, now 3"):
        run_claim(make_claim(TINY.replace('"train.epochs" = 2', '"train.epochs" = 3')), Options(tmp_path / "work"))
    assert begun == []


def test_several_at_a_time_share_the_cores(make_claim, tmp_path, monkeypatch):
    monkeypatch.setattr("claims_tools.running.cores", lambda: 8)
    claim = make_claim(TINY)
    for jobs, threads in ((1, None), (2, 4), (20, 1)):
        options = Options(tmp_path, jobs=jobs)
        words = plan(claim, missing(claim, [], options), options)[0].words
        assert [word for word in words if "threads" in word] == ([f"--train.threads={threads}"] if threads else [])


def test_an_arm_may_have_data_of_its_own(make_claim, tmp_path):
    claim = make_claim(
        '[data]\nwords = "two sets"\nroot = "one"\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nroot = "other"\n'
    )
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    options = Options(tmp_path / "work", str(tmp_path), seeds=[0])
    jobs = {job.name: job.words for job in plan(claim, missing(claim, [], options), options)}
    assert f"--data.root={(tmp_path / 'one').resolve()}" in jobs["a-s0"]
    assert f"--data.root={(tmp_path / 'other').resolve()}" in jobs["b-s0"]


def test_runs_of_a_seed_share_their_first_stage(make_claim, tmp_path):
    claim = make_claim(
        '[[grid]]\nrecipe = "livt/cifar100-lt-100"\nseeds = "0-1"\n[grid.over]\n'
        '"objective.name" = ["bce", "balanced-bce"]\n'
    )
    options = Options(tmp_path)
    jobs = plan(claim, missing(claim, [], options), options)
    assert [job.point is None for job in jobs] == [True, False, False, True, False, False]
    assert jobs[1].needs == jobs[2].needs == jobs[0].name != jobs[3].name == jobs[4].needs


def test_training_stopping_going_on_and_taking_in(make_claim, tmp_path, monkeypatch, capsys):
    claim = make_claim(TINY)
    work = tmp_path / "work"
    assert run_claim(claim, Options(work, jobs=2, minutes=1 / 60)) == 0
    # What had begun may come to its end, on a quick machine; the third never begins.
    left = 3 - len(checked_rows(claim))
    assert left >= 1 and f"the time is over; {left} runs are left" in capsys.readouterr().out
    assert not (work / "bf-s1").exists()

    assert run_claim(claim, Options(work, jobs=2, seeds=[0])) == 0
    rows = checked_rows(claim)
    assert sorted(keys(rows)) == [("bf", 0), ("plain", 0)]
    true = json.loads((work / "bf-s0" / "scores.json").read_text())["test"]
    row = next(row for row in rows if row["arm"] == "bf")
    assert row["All"] == true["top1"] and row["NLL"] == true["nll"] and row["Few"] == true["groups"]["few"]["accuracy"]
    assert row["steps"] == 2 and row["selection"] == "last epoch" and row["seconds"] > 0 and row["threads"] >= 1
    assert row["hardware"]["torch"] and row["precision"] and row["images_per_second"] > 0

    begun = []
    monkeypatch.setattr(Runner, "_child", lambda self, job: begun.append(job.name))
    capsys.readouterr()
    assert run_claim(claim, Options(work, seeds=[0])) == 0
    assert begun == [] and "2 of 3 runs have a row, nothing to do." in capsys.readouterr().out

    # A row is lost between the end of the training and the next command: it is made anew, and nothing is trained.
    drop_rows(claim, ["bf:0"])
    assert run_claim(claim, Options(work, seeds=[0])) == 0
    assert begun == [] and sorted(keys(checked_rows(claim))) == [("bf", 0), ("plain", 0)]

    # On another machine, where nothing but the rows of the repository is, the same holds.
    assert run_claim(claim, Options(tmp_path / "elsewhere", seeds=[0])) == 0
    assert begun == []

    before = checked_rows(claim)
    claim.results.unlink()
    assert adopt(claim, [work]) == 2 and sorted(checked_rows(claim), key=str) == sorted(before, key=str)
    assert adopt(claim, [work / "bf-s0"]) == 0
    claim.results.unlink()
    other = make_claim(TINY.replace('"data.largest" = 40', '"data.largest" = 50'))
    # A row says what was trained, also where claim.toml has changed meanwhile.
    assert run_row(other, other.arm("bf"), 0, work / "bf-s0")["settings"]["data.largest"] == 40
    with pytest.raises(
        ConfigError, match=r"settings of no arm of some-claim; nearest is .*: data.largest was 40, now 50"
    ):
        adopt(other, [work])


def test_a_run_that_fails_is_told_and_leaves_no_row(make_claim, tmp_path, capsys):
    claim = make_claim(TINY.replace('"train.warmup_epochs" = 0.0', '"train.warmup_epochs" = 2.0'))
    assert run_claim(claim, Options(tmp_path / "work", only=["plain"])) == 1
    shown = capsys.readouterr().out
    assert "plain-s0 failed:" in shown and "it must be less than train.epochs" in shown and "1 runs are left" in shown
    assert checked_rows(claim) == []


def test_ctrl_c_ends_the_script_with_130_and_the_same_command_goes_on(make_claim, tmp_path):
    claim = make_claim(TINY)
    command = [sys.executable, str(BENCHMARKS / "claims" / "run.py"), str(claim.folder), "--work", str(tmp_path / "w")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 300
    while not list((tmp_path / "w" / "logs").glob("*.txt")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and "the same command goes on with them" in shown


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run.py", "no-such-claim"], "there is no claim 'no-such-claim'; valid: "),
        (["run.py", "livt-in-miniature", "--only", "maee-ce"], "livt-in-miniature: there is no arm 'maee-ce'"),
        (["run.py", "livt-in-miniature", "--seeds", "x"], "--seeds is 'x'"),
        (
            ["smoke.py", "livt-in-miniature"],
            "livt-in-miniature needs data (cifar-100-python/, tiny-imagenet-lt/): give --data DIR",
        ),
        (["smoke.py"], "fast-recipes needs data (cifar-100-python/): give --data DIR, or set RELATUM_DATA."),
    ],
)
def test_an_error_of_a_script_is_one_sentence(monkeypatch, capsys, words, error):
    monkeypatch.delenv("RELATUM_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / "claims" / words[0]), run_name="__main__")
    assert ended.value.code == 2 and capsys.readouterr().err.startswith(f"error: {error}")
