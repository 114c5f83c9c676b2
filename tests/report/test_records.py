"""Run directories, whole and broken, become records."""

import json

import pytest

from relatum.errors import CheckpointError
from relatum.report import load_records


def test_a_folder_of_runs_stands_for_them_plainest_first(three_runs):
    records = load_records([three_runs])
    assert [r.name for r in records] == ["cross-entropy", "balanced-softmax", "balanced-softmax-batchformer"]
    assert [r.seed for r in records] == [0, 1, 2]
    assert all(r.split == "test" and r.state() == "" for r in records)


def test_the_given_order_is_kept_and_a_run_is_counted_once(three_runs):
    last, first = three_runs / "balanced-softmax-batchformer", three_runs / "cross-entropy"
    records = load_records([str(last), first, last])
    assert [r.path for r in records] == [last, first]


def test_seed_ten_comes_after_seed_two(fabricate, tmp_path):
    for seed in (10, 2):
        fabricate.run(tmp_path, seed=seed, directory=f"run-s{seed}")
    assert [r.name for r in load_records([tmp_path])] == ["run-s2", "run-s10"]


def test_test_is_primary_before_val(fabricate, tmp_path):
    path = fabricate.run(tmp_path)
    scores = json.loads((path / "scores.json").read_text())
    scores = {"train": scores["test"], "val": scores["test"]}
    (path / "scores.json").write_text(json.dumps(scores))
    assert load_records([path])[0].split == "val"
    (path / "scores.json").write_text(json.dumps({**scores, "test": {**scores["val"], "top1": 0.125}}))
    record = load_records([path])[0]
    assert record.split == "test"
    assert record.primary["top1"] == 0.125


def test_an_unfinished_run_shows_its_last_evaluation(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=4)
    assert load_records([path])[0].has_scores
    (path / "scores.json").unlink()
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines)[:-30])  # the last line is cut by a kill
    record = load_records([path])[0]
    kept = [row for row in map(json.loads, lines[:-1]) if row["kind"] == "eval"][-1]
    assert record.skipped_lines == 1
    assert record.primary["top1"] == kept["top1"]
    assert record.primary["groups"]["few"] == {"accuracy": kept["few"], "classes": 7}
    assert "epoch 4 of 4, last evaluation on test" in record.state()


def test_rows_written_again_after_a_resume_replace_the_old_ones(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    before = load_records([path])[0].training()
    again = {**before[-1], "loss": 99.0}
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr' + "\n" + json.dumps(again) + "\n")
    after = load_records([path])[0]
    assert len(after.training()) == len(before)
    assert after.training()[-1]["loss"] == 99.0 != before[-1]["loss"]
    assert after.skipped_lines == 1


@pytest.mark.parametrize("kept", ["config.toml", "manifest.json", "metrics.jsonl", "scores.json"])
def test_one_file_is_enough(fabricate, tmp_path, kept):
    path = fabricate.run(tmp_path, epochs=2)
    for file in path.iterdir():
        if file.is_file() and file.name != kept:
            file.unlink()
    record = load_records([path])[0]
    assert bool(record.primary) == (kept in ("metrics.jsonl", "scores.json"))
    assert (record.counts == []) == (kept in ("config.toml", "metrics.jsonl"))


def test_equal_names_are_told_apart(fabricate, tmp_path):
    paths = [fabricate.run(tmp_path / side, epochs=2) for side in ("a", "b")]
    assert [r.name for r in load_records(paths)] == ["a/cross-entropy", "b/cross-entropy"]


@pytest.mark.parametrize("case", ["missing", "file", "empty", "manifest", "scores", "config"])
def test_errors_name_the_path_and_the_cure(fabricate, tmp_path, case):
    path = fabricate.run(tmp_path, epochs=2)
    culprit = {
        "missing": tmp_path / "nowhere", "file": path / "config.toml", "empty": path / "checkpoints",
        "manifest": path / "manifest.json", "scores": path / "scores.json", "config": path / "config.toml",
    }[case]  # fmt: skip
    given = path if case in ("manifest", "scores", "config") else culprit
    if given is path:
        assert load_records([path])
        culprit.write_text('{"cut": ')
    with pytest.raises(CheckpointError) as caught:
        load_records([given])
    assert str(culprit) in str(caught.value)
    assert any(word in str(caught.value) for word in ("give", "rerun"))


def test_no_directory_is_an_error():
    with pytest.raises(CheckpointError, match="at least one"):
        load_records([])
