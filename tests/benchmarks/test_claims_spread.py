"""Mean, spread and the error of a difference are what they are called, by numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from claims_tools import cells
from claims_tools.spread import Difference, Estimate, by_seed, difference, estimate

from relatum.report.format import DASH


def test_mean_and_sample_standard_deviation():
    values = {0: 31.5, 1: 33.25, 4: 30.0}
    found = estimate(values)
    numbers = np.array(list(values.values()))
    assert found.mean == pytest.approx(numbers.mean(), abs=1e-12)
    assert found.std == pytest.approx(np.sqrt(((numbers - numbers.mean()) ** 2).sum() / 2), abs=1e-12)
    assert found.seeds == (0, 1, 4) and estimate({0: 1.0}).std is None and estimate({}) is None


def test_the_same_seeds_are_paired():
    base, values = {0: 30.0, 1: 40.0, 2: 50.0}, {0: 31.0, 1: 41.5, 2: 51.3}
    found = difference(values, base)
    steps = np.array([1.0, 1.5, 1.3])
    assert found.paired and found.mean == pytest.approx(steps.mean(), abs=1e-12)
    assert found.error == pytest.approx(steps.std(ddof=1) / np.sqrt(3), abs=1e-12)


def test_other_seeds_are_not_paired_and_their_errors_add_as_squares():
    base, values = {0: 30.0, 1: 40.0, 2: 50.0}, {0: 31.0, 1: 41.5}
    found = difference(values, base)
    error = np.sqrt(np.var([31.0, 41.5], ddof=1) / 2 + np.var([30.0, 40.0, 50.0], ddof=1) / 3)
    assert not found.paired and found.error == pytest.approx(error, abs=1e-12)
    assert found.mean == pytest.approx(36.25 - 40.0, abs=1e-12)


def test_one_seed_has_a_difference_and_no_error():
    assert difference({0: 3.0}, {0: 1.0}) == Difference(2.0, None, paired=True)
    assert difference({1: 3.0}, {0: 1.0, 2: 1.5}) == Difference(1.75, None, paired=False)
    assert difference({}, {0: 1.0}) is None


def test_numbers_are_taken_in_points_and_without_what_is_not_defined(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {1: 0.25, 0: 0.5, 2: None}, "bs": {0: 0.125}})
    assert by_seed(rows, "ce", "All") == {0: 50.0, 1: 25.0}
    rows = make_rows(claim, {"ce": {0: 2.5}}, column="NLL")
    assert by_seed(rows, "ce", "NLL") == {0: 2.5} and by_seed(rows, "ce", "Few") == {}


@pytest.mark.parametrize(
    ("found", "column", "words"),
    [
        (Estimate(35.04, 0.46, (0, 1)), "All", "35.0 ± 0.5"),
        (Estimate(35.04, None, (0,)), "All", "35.0"),
        (Estimate(3.04051, 0.0126, (0, 1)), "NLL", "3.041 ± 0.013"),
        (None, "All", DASH),
    ],
)
def test_cells_of_values(found, column, words):
    assert cells.value(found, column) == words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Difference(2.44, 0.31, paired=True), "+2.4 ± 0.3"),
        (Difference(-2.44, 0.31, paired=False), "-2.4 ± 0.3 (unpaired)"),
        (Difference(0.5, None, paired=True), "+0.5 (one seed)"),
        (None, DASH),
    ],
)
def test_cells_of_differences(found, words):
    assert cells.signed(found, "All") == words


def test_core_minutes_of_a_run_and_of_its_first_stage(make_claim, make_rows):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {0: 0.1, 1: 0.1, 2: 0.1}})
    assert cells.core_minutes(rows, "ce") == "2.0"
    rows[1] |= {"seconds": 60.0, "threads": 2}  # as much work
    rows[2] |= {"seconds": 9000.0}  # the machine slept in between
    assert cells.core_minutes(rows, "ce") == "2.0"
    staged = make_rows(claim, {"ce": {0: 0.1}}, seconds=630.0, pretraining={"epochs": 5, "seconds": 1200.0}, threads=2)
    assert cells.core_minutes(staged, "ce") == "21 + 40"
    assert cells.core_minutes(make_rows(claim, {"ce": {0: 0.1}}, seconds=None), "ce") == DASH
