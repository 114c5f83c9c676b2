"""Comparison: best marks, seeds, settings, words; all recomputed here from the files."""

import io
import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from relatum.report import comparison_table, load_records
from relatum.report.class_tables import confused_pairs, rarest_classes
from relatum.report.compare import columns, differences, rows, seed_rows, setting_differences
from relatum.report.format import percent, plural, setting
from relatum.report.headline import headline
from relatum.report.seeds import averaged, mean_record, repeated, seed_groups


def _edit(path, change):
    scores = json.loads((path / "scores.json").read_text())
    change(scores["test"])
    (path / "scores.json").write_text(json.dumps(scores))


def _text(table):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_best_of_each_column_is_marked(three_runs):
    records = load_records([three_runs])
    shown = columns(records)
    table = rows(records, shown)
    for c, column in enumerate(shown):
        values = [column.value(r) for r in records]
        if column.better and len({column.write(v) for v in values}) > 1:
            best = max(values) if column.better == "high" else min(values)
            assert [row[c].best for row in table] == [column.write(v) == column.write(best) for v in values]
        else:
            assert not any(row[c].best for row in table)
    assert sum(cell.best for row in table for cell in row) >= 8


def test_runs_on_other_samples_are_not_ranked(fabricate, tmp_path):
    paths = [fabricate.run(tmp_path, method, epochs=2) for method in fabricate.METHODS[:2]]
    records = load_records(paths)
    assert differences(records) == []
    assert any(cell.best for row in rows(records, columns(records)) for cell in row)
    _edit(paths[1], lambda scores: scores.update(samples=7, rule="oltr"))
    records = load_records(paths)
    assert differences(records) == ["number of images", "shot rule"]
    assert not any(cell.best for row in rows(records, columns(records)) for cell in row)
    assert "do not compare" in headline(records)[0]


def test_seeds_are_gathered_into_mean_and_sample_deviation(fabricate, tmp_path):
    for method in fabricate.METHODS[:2]:
        for seed in (0, 1, 10):
            fabricate.run(tmp_path, method, seed=seed, epochs=2, directory=f"{method.name}-s{seed}")
    records = load_records([tmp_path])
    groups = repeated(records)
    assert [(g.name, g.seeds) for g in groups] == [("cross-entropy", [0, 1, 10]), ("balanced-softmax", [0, 1, 10])]
    few = [r.scores["test"]["groups"]["few"]["accuracy"] for r in records[:3]]
    cells = seed_rows(groups, columns(records))
    assert cells[0][3].text == f"{100 * statistics.mean(few):.1f} ± {100 * statistics.stdev(few):.1f}"
    assert [row[3].best for row in cells] == [False, True]
    assert not any(cell.best for row in rows(records, columns(records)) for cell in row)
    assert [r.name for r in averaged(records)] == ["cross-entropy", "balanced-softmax"]
    title, sentences = headline(records)
    assert title.endswith("with balanced-softmax")
    assert "mean of 3 seeds" in sentences[0]


def _changed(record, encoder="", classifier=None):
    config = {**record.config, "model": {**record.config["model"], "encoder": encoder}}
    return replace(record, config=config, manifest={**record.manifest, **(classifier or {})})


def test_an_encoder_of_the_same_seed_is_not_another_setting(fabricate, tmp_path):
    for seed in (0, 1):
        fabricate.run(tmp_path, fabricate.METHODS[0], seed=seed, epochs=2, directory=f"run-s{seed}")
    zero, one = load_records([tmp_path])
    own = [_changed(zero, "sweep/pretrain-abc-s0"), _changed(one, "sweep/pretrain-abc-s1")]
    assert [group.seeds for group in seed_groups(own)] == [[0, 1]]
    foreign = [_changed(zero, "sweep/pretrain-abc-s0"), _changed(one, "sweep/pretrain-xyz-s1")]
    assert [group.seeds for group in seed_groups(foreign)] == [[0], [1]]


def test_a_run_with_another_classifier_is_not_another_seed(fabricate, tmp_path):
    for seed in (0, 1):
        fabricate.run(tmp_path, fabricate.METHODS[0], seed=seed, epochs=2, directory=f"run-s{seed}")
    zero, one = load_records([tmp_path])
    assert len(seed_groups([zero, one])) == 1
    assert len(seed_groups([zero, _changed(one, classifier={"classifier": {"method": "crt"}})])) == 2


def test_mean_record_averages_and_pools(fabricate, tmp_path):
    for seed in (3, 4):
        fabricate.run(tmp_path, seed=seed, epochs=2, directory=f"r{seed}")
    records = load_records([tmp_path])
    mean, one, two = mean_record(repeated(records)[0]).primary, records[0].primary, records[1].primary
    assert one["top1"] != two["top1"]
    assert mean["top1"] == pytest.approx((one["top1"] + two["top1"]) / 2)
    assert np.array_equal(mean["confusion"], np.array(one["confusion"]) + np.array(two["confusion"]))
    assert mean["per_class"][5]["accuracy"] == pytest.approx(
        (one["per_class"][5]["accuracy"] + two["per_class"][5]["accuracy"]) / 2
    )
    b = int(np.argmax(one["reliability"]["count"]))
    n, m = one["reliability"]["count"][b], two["reliability"]["count"][b]
    pooled = (n * one["reliability"]["accuracy"][b] + m * two["reliability"]["accuracy"][b]) / (n + m)
    assert mean["reliability"]["accuracy"][b] == pytest.approx(pooled)
    assert mean_record(repeated(records)[0]).metrics[0]["loss"] == pytest.approx(
        (records[0].metrics[0]["loss"] + records[1].metrics[0]["loss"]) / 2
    )


def test_another_setting_than_the_seed_keeps_runs_apart(fabricate, tmp_path):
    fabricate.run(tmp_path, seed=0, epochs=2, directory="a")
    fabricate.run(tmp_path, seed=1, epochs=2, directory="b")
    assert len(seed_groups(load_records([tmp_path]))) == 1
    fabricate.run(tmp_path, seed=2, epochs=3, directory="c")
    assert [len(g.records) for g in seed_groups(load_records([tmp_path]))] == [2, 1]


def test_settings_that_differ(three_runs):
    found = dict(setting_differences(load_records([three_runs])))
    assert set(found) == {"relation.name", "objective.name", "train.seed"}
    assert found["relation.name"] == ["none", "none", "batchformer"]


def test_headline_of_several_runs_is_computed(three_runs):
    records = load_records([three_runs])
    few = [100 * r.scores["test"]["groups"]["few"]["accuracy"] for r in records]
    title, sentences = headline(records)
    plain = title.replace("\u00a0", " ")
    assert plain == f"Rare classes: {few[0]:.1f} % → {few[2]:.1f} % with balanced-softmax-batchformer"
    assert sentences[-1] == "The few-shot number rests on 350 test images."


def test_headline_does_not_claim_a_gain_that_is_not_there(three_runs):
    records = load_records([three_runs])[::-1]
    title, sentences = headline(records)
    assert title.startswith("Rare classes: no run is better than balanced-softmax-batchformer")
    assert sentences[0].startswith("Next is balanced-softmax with")


def test_headline_admits_overlapping_intervals(fabricate, tmp_path):
    paths = [fabricate.run(tmp_path, method, epochs=2) for method in fabricate.METHODS[1:]]
    _edit(paths[1], lambda scores: scores["interval"].update(low=0.98, high=0.99))
    assert not any("chance" in sentence for sentence in headline(load_records(paths))[1])
    _edit(paths[1], lambda scores: scores["interval"].update(low=0.0))
    assert any("chance" in sentence for sentence in headline(load_records(paths))[1])


def test_headline_of_one_run_and_of_none(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    groups = load_records([path])[0].primary["groups"]
    title = headline(load_records([path]))[0].replace("\u00a0", " ")
    few, many = (100 * groups[name]["accuracy"] for name in ("few", "many"))
    assert title == f"Rare classes: {few:.1f} % right, frequent ones {many:.1f} %"
    (path / "scores.json").unlink()
    assert headline(load_records([path]))[0] == "No final scores yet"


def test_an_empty_group_is_named_not_zero(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2, classes=4, counts=[300, 200, 150, 120])
    title, sentences = headline(load_records([path]))
    assert title.startswith("All classes")
    assert "no few-shot class" in sentences[0]
    cells = rows(load_records([path]), columns(load_records([path])))[0]
    assert cells[3].text == "n/a"


def test_terminal_table(three_runs):
    records = load_records([three_runs])
    text = _text(comparison_table(records))
    assert "Few (7)" in text and "shot rule standard" in text and "on test" in text
    for record in records:
        line = next(line for line in text.splitlines() if f" {record.name} " in line)
        scores = record.primary
        wanted = [scores["top1"], *(scores["groups"][g]["accuracy"] for g in ("many", "medium", "few")), scores["ece"]]
        assert [cell.strip() for cell in line.split("│")[2:7]] == [f"{100 * value:.1f}" for value in wanted]


def test_terminal_table_takes_scores_by_name(three_runs):
    scores = load_records([three_runs])[0].primary
    emptied = {**scores, "groups": {**scores["groups"], "few": {"accuracy": None, "classes": 0}}}
    text = _text(comparison_table({"[b]run": emptied, "none yet": {}}))
    assert "[b]run" in text and "Few (0)" in text and "n/a" in text


def test_rarest_classes_and_confused_pairs(three_runs):
    records = load_records([three_runs])
    rarest = rarest_classes(records)
    assert len(rarest) == 10 and rarest[0].train_count == "4"
    last = records[-1].per_class[-1]
    assert rarest[0].name == last["name"] and rarest[0].accuracies[-1] == f"{100 * last['accuracy']:.1f}"
    matrix = np.array(records[-1].primary["confusion"])
    pair = confused_pairs(records[-1])[0]
    assert int(pair.images) == max(matrix[i, j] for i in range(20) for j in range(20) if i != j)


def test_numbers_as_people_read_them():
    assert [percent(x) for x in (0.12345, None, float("nan"), 1)] == ["12.3", "n/a", "n/a", "100.0"]
    assert [plural(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [setting(v) for v in (True, 0.1, [1, 2], "x")] == ["yes", "0.1", "1, 2", "x"]
