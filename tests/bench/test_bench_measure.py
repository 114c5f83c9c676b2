"""Medians, ratios of rounds, and the order of measuring; what is held against which bar."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from relatum.bench import Spread, interleaved, ratios
from relatum.bench.costs import Beside, _times
from relatum.bench.results import AGAINST_USUAL, BESIDE, PIPELINE, START, Result
from relatum.bench.speed import LOOP, RESIDENT, USUAL
from relatum.bench.table import bar_table, beside_sentence, speed_table


def test_ways_are_measured_in_turn_and_every_other_round_backwards():
    order, done = [], []
    ways = {name: lambda name=name: float(len(order.append(name) or order)) for name in "abc"}
    found = interleaved(ways, 3, lambda: done.append(1))
    assert "".join(order) == "abccbaabc"
    assert found == {"a": [1.0, 6.0, 7.0], "b": [2.0, 5.0, 8.0], "c": [3.0, 4.0, 9.0]}
    assert len(done) == 9


def test_the_ratio_is_that_of_each_round():
    # In every round one is twice the other, though the machine was ten times slower in the second.
    assert ratios([200.0, 20.0, 180.0], [100.0, 10.0, 90.0]) == Spread(2.0, 2.0, 2.0, 3)
    assert ratios([3.0, 1.0, 2.0], [1.0, 1.0, 1.0]) == Spread(2.0, 1.0, 3.0, 3)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("epochs", "every", "times"), [(10, 1, 9), (10, 5, 1), (10, 3, 3), (1, 1, 0), (10, 0, 0)])
def test_how_often_something_is_due_before_the_end(epochs, every, times):
    assert _times(epochs, every) == times == sum(bool(every) and e % every == 0 for e in range(1, epochs))


def result(**changes) -> Result:
    beside = Beside(evaluation=2.0, evaluations=4, last=3.0, checkpoint=0.5, checkpoints=10, training=304.0)
    values = {
        "name": "vit-nano-p4, mae",
        "batch": 128,
        "precision": "float32",
        "threads": 2,
        "speeds": {LOOP: [100.0, 80.0, 90.0], RESIDENT: [100.0, 80.0, 100.0], USUAL: [50.0, 40.0, 30.0]},
        "settings": {("float32", 1): [50.0], ("float32", 2): [90.0], ("bfloat16", 2): [95.0]},
        "rule": ("float32", 2),
        "beside": beside,
        "start": 9.0,
        "epochs": 5,
    }
    return Result(**{**values, **changes})


def test_the_share_beside_the_steps():
    assert result().beside.share == pytest.approx(16 / 320)


def test_each_bar_is_met_or_missed():
    found = {bar: (spread.median, bar.met(spread.median)) for bar, spread in result().bars}
    assert found == {PIPELINE: (1.0, True), AGAINST_USUAL: (2.0, False), BESIDE: (0.05, False), START: (9.0, True)}
    slow = result(start=10.0, speeds={LOOP: [96.0], RESIDENT: [100.0], USUAL: [40.0]})
    assert [bar.met(spread.median) for bar, spread in slow.bars] == [False, True, False, False]


def test_the_tables_say_it():
    shown = Console(file=io.StringIO(), width=80)
    shown.print(speed_table(result()))
    shown.print(bar_table([result()]))
    text = shown.file.getvalue()
    assert "vit-nano-p4, mae: batch 128, float32, 2 threads" in text
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
    bars = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if "vit-nano-p4, mae" in line]
    assert ["with real input", "90", "80", "100", ""] in rows
    assert ["float32, 2 threads", "90", "90", "90", "auto"] in rows
    assert ["bfloat16, 2 threads", "95", "95", "95", "fastest"] in rows
    name = "vit-nano-p4, mae"  # a long one: the table still fits a terminal of 80 columns
    assert bars[1:] == [
        ["real input / resident", name, "1.000", "0.900-1.000", "≥ 0.97", "met"],
        ["relatum / usual way", name, "2.000", "2.000-3.000", "≥ 2.2", "missed"],
        ["beside the steps", name, "5.0%", "< 5%", "missed"],
        ["to the first step", name, "9.0 s", "< 10 s", "met"],
    ]
    assert "4 evaluations of 2.00 s and a last one of 3.00 s, 10 checkpoints of 0.500 s" in beside_sentence(result())


def test_all_of_it_can_be_kept():
    kept = result().to_dict()
    assert kept["images_per_second"]["usual way"] == {"median": 40.0, "low": 30.0, "high": 50.0, "rounds": 3}
    assert kept["auto"] == {"precision": "float32", "threads": 2}
    assert [entry["met"] for entry in kept["bars"]] == [True, False, False, True]
    assert kept["settings"][2]["precision"] == "bfloat16"
