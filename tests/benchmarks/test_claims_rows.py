"""results.jsonl: what no longer matches claim.toml is refused by name, and can be dropped."""

from __future__ import annotations

import json

import pytest
from claims_kit import ARMS
from claims_tools.left import expected_seconds, left_in_words
from claims_tools.rows import append_row, checked_rows, drop_rows, read_rows

from relatum.errors import ConfigError


def test_rows_that_match_are_read_in_their_order(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"bs": {1: 0.3}, "ce": {0: 0.2}})
    append_row(claim.results, {**rows[1], "seed": 2})
    assert [(row["arm"], row["seed"]) for row in checked_rows(claim)] == [("bs", 1), ("ce", 0), ("ce", 2)]
    assert read_rows(claim.folder / "none.jsonl") == []


def test_changed_settings_are_refused_with_what_differs_and_the_cure(make_claim, make_rows):
    make_rows(make_claim(), {"ce": {0: 0.2}, "bs": {1: 0.3}})
    claim = make_claim('[settings]\n"train.epochs" = 25\n' + ARMS)
    words = (
        r"some-claim/results.jsonl, line 1 \(arm ce, seed 0\): it was trained with other settings than claim.toml has "
        r"now: train.epochs was 20, now 25. .*run.py some-claim --drop ce:0"
    )
    with pytest.raises(ConfigError, match=words):
        checked_rows(claim)
    assert drop_rows(claim, ["ce:0"]) == 1
    with pytest.raises(ConfigError, match=r"line 1 \(arm bs, seed 1\)"):
        checked_rows(claim)
    assert drop_rows(claim, ["bs"]) == 1 and checked_rows(claim) == []


def test_a_setting_at_the_librarys_default_need_not_be_in_a_row(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {0: 0.2}})
    assert rows[0]["settings"]["objective.name"] == "cross-entropy"  # a default, kept because claim.toml says it
    del rows[0]["settings"]["objective.name"]
    claim.results.write_text(json.dumps(rows[0]) + "\n")
    assert len(checked_rows(claim)) == 1


def test_an_unknown_arm_and_a_row_too_many_are_refused(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {0: 0.2}})
    append_row(claim.results, {**rows[0], "arm": "gone"})
    with pytest.raises(ConfigError, match=r"line 2 \(arm gone, seed 0\): claim.toml has no such arm"):
        checked_rows(claim)
    rows = make_rows(claim, {"ce": {0: 0.2}})
    append_row(claim.results, rows[0])
    with pytest.raises(ConfigError, match=r"line 2 .*: an earlier row has the same arm and seed"):
        checked_rows(claim)


def test_a_damaged_line_and_a_wrong_name_are_told(make_claim, make_rows):
    claim = make_claim()
    make_rows(claim, {"ce": {0: 0.2}})
    with pytest.raises(ConfigError, match=r"has no row ce:7; rows are named as ARM or ARM:SEED"):
        drop_rows(claim, ["ce:7"])
    assert len(read_rows(claim.results)) == 1
    with claim.results.open("a") as file:
        file.write('{"arm": \n')
    with pytest.raises(ConfigError, match=r"line 2: not a row of results"):
        read_rows(claim.results)


def test_what_is_left_is_told_with_the_time_it_takes(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {0: 0.2, 1: 0.2}})  # two minutes each
    todo = [(claim.arm("ce"), 2), (claim.arm("bs"), 0), (claim.arm("bs"), 1), (claim.arm("bs"), 2)]
    words = left_in_words(claim, rows, todo, jobs=2)
    assert words.splitlines() == [
        "some-claim: 2 of 6 runs have a row.",
        "  ce: seed 2",
        "  bs: seed 0, 1, 2",
        "about 4 min 00 s to go, 2 at a time",
    ]
    assert expected_seconds(claim, [], claim.arm("ce")) is None
    assert left_in_words(claim, rows, [], 1).endswith("nothing to do.")


def test_another_schedule_takes_longer_in_proportion(make_claim, make_rows):
    grid = '[[grid]]\n[grid.over]\n"train.epochs" = [20, 60]\n'
    claim = make_claim(grid)
    rows = make_rows(claim, {"20": {0: 0.2}})
    assert expected_seconds(claim, rows, claim.arm("60")) == pytest.approx(360.0)
