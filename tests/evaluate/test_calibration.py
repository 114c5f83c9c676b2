"""ECE, MCE and the bins, and the bootstrap interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relatum.errors import ConfigError, DataError
from relatum.evaluate import (
    bootstrap_interval,
    confidence,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)


def _loop_errors(confidences, correct, bins=15):
    ece, mce = 0.0, 0.0
    for b in range(bins):
        inside = [i for i, c in enumerate(confidences) if b / bins < c <= (b + 1) / bins]
        if inside:
            gap = abs(sum(correct[i] for i in inside) - sum(confidences[i] for i in inside)) / len(inside)
            ece, mce = ece + len(inside) / len(confidences) * gap, max(mce, gap)
    return ece, mce


@pytest.mark.parametrize("samples", [1, 7, 400])
def test_errors_equal_naive_loops(samples):
    rng = np.random.default_rng(samples)
    confidences, correct = rng.uniform(size=samples), rng.random(samples) < 0.6
    ece, mce = _loop_errors(confidences.tolist(), correct.tolist())
    assert expected_calibration_error(confidences, correct) == pytest.approx(ece, abs=1e-12)
    assert maximum_calibration_error(confidences, correct) == pytest.approx(mce, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_edge_belongs_to_the_bin_on_its_left(dtype):
    edges = (np.arange(16) / 15).astype(dtype)
    for b in range(15):
        at, above = edges[b + 1], np.nextafter(edges[b], dtype(2))
        count = reliability(np.array([at, above]), [True, False]).count
        assert count.tolist() == [2 * (i == b) for i in range(15)]


def test_confidence_zero_is_in_no_bin_and_one_in_the_last():
    table = reliability([0.0, 1.0], [False, False])
    assert table.count.sum() == 1 and table.count[14] == 1
    assert table.samples == 2
    assert table.ece() == pytest.approx(0.5)
    assert reliability([0.0], [True]).mce() is None


def test_mce_may_skip_sparse_bins():
    confidences, correct = [0.99] + [0.5] * 10, [False] + [True] * 5 + [False] * 5
    assert maximum_calibration_error(confidences, correct) == pytest.approx(0.99)
    assert maximum_calibration_error(confidences, correct, min_count=2) == pytest.approx(0.0)
    assert maximum_calibration_error(confidences, correct, min_count=11) is None


def test_table_as_json_has_none_in_empty_bins():
    values = reliability([0.5, 0.5], [True, False]).to_dict()
    assert [len(values[key]) for key in ("edges", "count", "accuracy", "confidence")] == [16, 15, 15, 15]
    assert values["accuracy"] == [0.5 if i == 7 else None for i in range(15)]
    assert values["confidence"] == [0.5 if i == 7 else None for i in range(15)]


def test_confidence_is_the_largest_softmax_probability():
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    assert confidence(logits) == pytest.approx(logits.double().softmax(1).amax(1).numpy(), abs=1e-14)
    assert confidence([[0.0, 0.0]]).tolist() == pytest.approx([0.5])
    assert confidence([[1e4, 0.0]]).tolist() == [1.0]


def test_float32_rounding_above_one_is_tolerated_and_logits_are_not():
    assert reliability(np.array([1 + 1e-7], np.float32), [True]).count[14] == 1
    for wrong in ([1.5], [-0.1], [math.nan]):
        with pytest.raises(DataError, match="softmax"):
            reliability(wrong, [True])
    with pytest.raises(DataError, match="shapes"):
        reliability([0.5, 0.5], [True])
    with pytest.raises(ConfigError, match="bin"):
        reliability([0.5], [True], bins=0)


def test_bootstrap_is_seeded_and_contains_the_estimate():
    correct = np.arange(200) < 130
    low, high = bootstrap_interval(correct, seed=1)
    assert low < 0.65 < high
    assert bootstrap_interval(correct, seed=2) != (low, high)
    assert bootstrap_interval(correct, seed=1) == (low, high)
    wide_low, wide_high = bootstrap_interval(correct, seed=1, level=0.999)
    assert wide_low < low and high < wide_high


def test_bootstrap_narrows_with_more_data_as_the_square_root():
    widths = [np.subtract(*bootstrap_interval(np.arange(n) < 0.7 * n, resamples=4000)[::-1]) for n in (100, 10_000)]
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.1)
    assert widths[1] == pytest.approx(2 * 1.96 * math.sqrt(0.7 * 0.3 / 10_000), rel=0.1)


def test_bootstrap_equals_resampling_by_hand():
    correct = np.arange(60) < 40
    draws = np.random.default_rng(0).integers(60, size=(20_000, 60))
    by_hand = np.quantile(correct[draws].mean(axis=1), [0.025, 0.975])
    assert bootstrap_interval(correct, resamples=20_000) == pytest.approx(by_hand, abs=0.017)  # one sample of 60


def test_bootstrap_of_certain_cases_and_errors():
    assert bootstrap_interval([True]) == (1.0, 1.0)
    assert bootstrap_interval([False, False]) == (0.0, 0.0)
    with pytest.raises(DataError, match="hit or miss"):
        bootstrap_interval([])
    with pytest.raises(ConfigError, match="resample"):
        bootstrap_interval([True], resamples=0)
    with pytest.raises(ConfigError, match="level"):
        bootstrap_interval([True], level=1.0)
