"""What several processes exchange: sums, agreement, rows of unequal length, statistics; and how they part."""

import json
import sys
from pathlib import Path

import pytest
import torch
from launch_kit import run_ranks

from relatum import processes
from relatum.errors import ConfigError

WORLD = 3
SCRIPT = """
import json, sys
import torch
from torch import nn
from relatum import processes

processes.join()
me = processes.rank()
norm = nn.BatchNorm1d(2)
norm.running_mean.fill_(float(me))
processes.share_buffers(norm)
rows = [torch.full((1, 2), float(me))] * (2 * me) if me else []
found = {
    "rank": [me, processes.world(), processes.is_first(), processes.local_rank()],
    "total": processes.total(torch.tensor([1.0, float(me)])).tolist(),
    "agreed": processes.agreed(me == 1, False, True),
    "first": processes.from_first({"from": me}),
    "all": processes.from_all(me * 10),
    "rows": processes.join_rows(rows).tolist(),
    "long": processes.join_rows([torch.arange(me)]).tolist(),
    "none": processes.join_rows([]),
    "buffer": norm.running_mean.tolist(),
    "speaks": processes.first_to_speak(),
}
with open(f"found-{me}.json", "w") as file:
    json.dump(found, file)
print("done", me)
processes.leave(0)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meeting")
    ended = run_ranks([sys.executable, "-c", SCRIPT], WORLD, folder)
    assert [e.code for e in ended] == [0] * WORLD, ended
    assert [e.out.strip() for e in ended] == [f"done {rank}" for rank in range(WORLD)], "what is buffered is written"
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(WORLD)]


def test_each_knows_who_it_is(found):
    assert [entry["rank"] for entry in found] == [[0, 3, True, 0], [1, 3, False, 1], [2, 3, False, 2]]


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("total", [3.0, 3.0]),
        ("agreed", [True, False, True]),
        ("first", {"from": 0}),
        ("all", [0, 10, 20]),
        ("rows", [[1.0, 1.0]] * 2 + [[2.0, 2.0]] * 4),
        ("long", [0, 0, 1]),
        ("none", None),
        ("buffer", [0.0, 0.0]),
    ],
)
def test_all_get_the_same_answer(found, what, answer):
    assert [entry[what] for entry in found] == [answer] * WORLD


def test_exactly_one_speaks(found):
    assert sorted(entry["speaks"] for entry in found) == [False, False, True]


def test_alone_nothing_is_exchanged():
    rows = torch.arange(6.0).view(3, 2)
    assert processes.world() == 1 and processes.is_first() and processes.first_to_speak()
    assert processes.agreed(True, False) == (True, False)
    assert processes.from_first("x") == "x" and processes.from_all(1) == [1]
    joined = processes.join_rows([rows[:1], rows[1:]])
    assert joined is not None and torch.equal(joined, rows) and processes.join_rows([]) is None
    summed = processes.total(rows)
    assert torch.equal(summed, rows) and summed is not rows


def test_a_launcher_that_sets_half_of_its_variables_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK"):
        processes.join()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf"])
def test_a_wrong_time_limit_is_named(monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(processes.TIMEOUT_VARIABLE, text)
    with pytest.raises(ConfigError, match="RELATUM_TIMEOUT_MINUTES"):
        processes.join()


def test_kit_kills_what_hangs(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("launch_kit.SECONDS", 1)
    with pytest.raises(Exception, match="timed out"):
        run_ranks([sys.executable, "-c", "import time; time.sleep(60)"], 1, tmp_path)
