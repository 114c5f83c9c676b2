"""A number that is not finite in one process is met by all of them alike, before any of them takes the step."""

import json
import sys
from pathlib import Path

import pytest
from launch_kit import run_ranks
from parallel_nonfinite import BAD_PASS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one-is-broken")
    program = Path(__file__).with_name("parallel_nonfinite.py")
    ended = run_ranks([sys.executable, str(program), str(folder)], 2, folder)
    assert [e.code for e in ended] == [0, 0], ended
    return folder


@pytest.fixture(scope="module")
def answers(folder) -> list[dict]:
    return [json.loads((folder / f"answer-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_both_processes_come_to_the_same(answers, policy):
    assert answers[0][policy] == answers[1][policy]


def test_stop_names_the_process_and_the_samples_of_both(folder, answers):
    words = answers[0]["stop"]["error"]
    assert f"the loss is not finite at step {BAD_PASS - 1}" in words and "(process 1)" in words
    report = json.loads((folder / "stop" / "failure.json").read_text())
    assert report["first"]["process"] == 1 and report["first"]["kind"] == "forward"
    assert len(report["samples"]) == 8 and len(set(report["samples"])) == 8
    assert [part["loss"] == "nan" for part in report["parts"]] == [False, True]
    assert report["step"] == BAD_PASS - 1


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_the_batch_is_left_out_once_and_counted(folder, answers, policy):
    assert answers[0][policy]["status"] == "finished" and answers[0][policy]["steps"] == 10
    manifest = json.loads((folder / policy / "manifest.json").read_text())
    assert (manifest["nonfinite_skipped"], manifest["nonfinite_places"]) == (1, [[0, BAD_PASS - 1]])


def test_going_back_ends_where_leaving_out_ends(answers):
    assert answers[0]["rollback"]["weights"] == answers[0]["skip"]["weights"] != answers[0]["stop"]["weights"]
