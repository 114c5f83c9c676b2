"""Calibration on the page: by shot group, and of sigmoid confidences."""

import json
import re

import pytest

from relatum.report import load_records
from relatum.report.page import render
from relatum.report.reliability import MOST_RUNS, calibration_table, group_panels
from relatum.report.seeds import averaged


def _errors(entry):
    return f"{100 * entry['ece']:.1f} / {100 * entry['mce']:.1f}"


def test_the_table_has_every_kind_of_confidence_and_every_group(fabricate, tmp_path):
    plain, other = (fabricate.run(tmp_path, method, epochs=2) for method in fabricate.METHODS[:2])
    records = load_records([plain, other])
    assert calibration_table(records).heads == ("Softmax", "Many", "Medium", "Few")
    fabricate.add_sigmoid(other, 0.0321, 0.0987)
    records = load_records([plain, other])
    table = calibration_table(records)
    assert table.heads == ("Softmax", "Sigmoid", "Many", "Medium", "Few")
    for (name, cells), record in zip(table.rows, records, strict=True):
        groups = record.primary["group_reliability"]
        sigmoid = "3.2 / 9.9" if record.name == "balanced-softmax" else "n/a"
        assert name == record.name
        assert cells == (_errors(record.primary), sigmoid, *(_errors(groups[g]) for g in ("many", "medium", "few")))
    text = render(records)
    assert "3.2 / 9.9" in text and "softmax; sigmoid for 1 of 2 runs" in text
    assert len(re.findall('aria-label="Reliability of [a-z-]+ by shot group', text)) == 2


def test_a_row_of_diagrams_for_the_first_runs(fabricate, tmp_path):
    for seed in range(MOST_RUNS + 1):
        fabricate.run(tmp_path, epochs=seed + 1, seed=seed, directory=f"r{seed}")
    records = load_records([tmp_path])
    panels = group_panels(records)
    assert [panel["name"] for panel in panels] == [f"r{i}" for i in range(MOST_RUNS)]
    few = records[0].primary["group_reliability"]["few"]
    assert f"few: ECE {100 * few['ece']:.1f}\u00a0%, {few['count']} images" in panels[0]["svg"]
    assert all(f"var(--{name})" in panels[0]["svg"] for name in ("many", "medium", "few"))
    assert all(len(panel["svg"]) < 25_000 for panel in panels)


def test_an_empty_group_says_so(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2, classes=4, counts=[300, 200, 150, 120])
    (record,) = load_records([path])
    assert calibration_table([record]).rows[0][1][2:] == ("n/a", "n/a")
    assert "few: no images" in group_panels([record])[0]["svg"]


def test_scores_of_earlier_versions_have_the_page_they_had(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    assert group_panels(load_records([path])) and calibration_table(load_records([path]))
    scores = json.loads((path / "scores.json").read_text())
    for key in ("sigmoid", "group_reliability"):
        del scores["test"][key]
    (path / "scores.json").write_text(json.dumps(scores))
    text = render(load_records([path]))
    assert "By shot group" not in text and "calibration errors" not in text and "Reliability</h2>" in text
    assert calibration_table(load_records([path])) is None
    assert "<dd>softmax</dd>" in text


def test_seeds_pool_their_groups_and_sigmoids(fabricate, tmp_path):
    for seed in (0, 1):
        path = fabricate.run(tmp_path, seed=seed, epochs=2, directory=f"r-s{seed}")
        fabricate.add_sigmoid(path, 0.02 + 0.02 * seed)
    records = load_records([tmp_path])
    (mean,) = averaged(records)
    one, two = (r.primary["group_reliability"]["few"] for r in records)
    found = mean.primary["group_reliability"]["few"]
    assert one["ece"] != two["ece"]
    assert found["ece"] == pytest.approx((one["ece"] + two["ece"]) / 2)
    assert found["count"] == one["count"] + two["count"] == sum(found["reliability"]["count"])
    assert mean.primary["sigmoid"]["ece"] == pytest.approx(0.03)
    fabricate.run(tmp_path, seed=2, epochs=2, directory="r-s2")
    assert averaged(load_records([tmp_path]))[0].primary["sigmoid"] is None
