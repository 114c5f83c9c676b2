"""Every finding is made to happen on disk, and named; clean data has none."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relatum.config import DataConfig
from relatum.data.inspect import inspect_data
from relatum.data.inspect_files import probe_pixels, probe_source, same_content, spread
from relatum.data.source import ArraySource
from relatum.errors import ConfigError, DataError


def write_image(path: Path, seed: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def make_folder(root: Path, splits: dict[str, dict[str, int]]) -> Path:
    """Write images of different content: {split or '': {class: count}}."""
    seed = 0
    for split, classes in splits.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                seed += 1
                write_image(root / split / name / f"{i}.png", seed)
    return root


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", {"train": {"cat": 6, "dog": 3}, "val": {"cat": 2, "dog": 2}})


def kinds(inspection) -> dict[str, int]:
    return {finding.kind: finding.count for finding in inspection.findings}


def test_clean_folder_has_no_findings_and_true_numbers(clean: Path) -> None:
    result = inspect_data(clean)
    assert result.findings == ()
    assert result.duplicates == ()
    train, val = result.splits
    assert (train.name, val.name) == ("train", "val")
    assert (train.samples, train.classes, train.checked) == (9, 2, 9)
    assert train.counts == {"cat": 6, "dog": 3}
    assert train.imbalance == 2.0
    assert train.rare_classes == {"dog": 3, "cat": 6}  # rarest first
    assert train.groups == {"many": 0, "medium": 0, "few": 2}
    assert train.sizes is not None
    assert dataclasses.astuple(train.sizes.width) == (24, 24.0, 24)
    assert dataclasses.astuple(train.sizes.height) == (20, 20.0, 20)
    assert (train.sizes.distinct, train.sizes.modes) == (1, {"RGB": 9})


def test_gini_equals_mean_absolute_difference(tmp_path: Path) -> None:
    counts = [7, 1, 4]
    root = make_folder(tmp_path, {"": dict(zip("abc", counts, strict=True))})
    expected = sum(abs(a - b) for a in counts for b in counts) / (2 * len(counts) * sum(counts))
    assert inspect_data(root).train.gini == pytest.approx(expected)


def test_unreadable_files_are_named_with_their_reason(clean: Path) -> None:
    photo = write_image(clean / "train/cat/cut.jpg", 77, (64, 64))
    photo.write_bytes(photo.read_bytes()[:-400])
    (clean / "train/cat/nothing.jpg").write_bytes(b"")
    (clean / "val/dog/words.jpg").write_text("this is not a picture")
    result = inspect_data(clean)
    assert kinds(result) == {"unreadable": 3}
    train, val = result.splits
    reasons = {Path(note.file).name: note.note for note in (*train.unreadable, *val.unreadable)}
    assert "truncated" in reasons["cut.jpg"]
    assert reasons["nothing.jpg"] == "empty file (0 bytes)"
    assert reasons["words.jpg"] == "not an image in a known format"
    assert [note.class_name for note in val.unreadable] == ["dog"]
    assert any("words.jpg" in example for example in result.findings[0].examples)
    assert train.samples == 11  # counted, so that the totals match the folder
    assert train.sizes is not None and sum(train.sizes.modes.values()) == 9


def test_missing_file_of_a_table_is_a_finding(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", 1)
    write_image(tmp_path / "b.png", 2)
    (tmp_path / "t.csv").write_text("path,label\na.png,x\nb.png,y\nb.png,y\ngone.png,y\nc.png,x\n")
    write_image(tmp_path / "c.png", 3)
    result = inspect_data(tmp_path / "t.csv")
    assert [note.note for note in result.train.unreadable] == ["file not found"]
    assert kinds(result) == {"unreadable": 1, "repeat": 1}  # b.png is listed twice


def test_same_image_twice_in_a_class(clean: Path) -> None:
    shutil.copy(clean / "train/cat/0.png", clean / "train/cat/copy.png")
    result = inspect_data(clean)
    assert kinds(result) == {"repeat": 1}
    (group,) = result.duplicates
    assert {Path(m.file).name for m in group.members} == {"0.png", "copy.png"}
    assert (group.repeated, group.across_splits, group.label_conflict) == (True, False, False)


def test_same_image_in_two_classes_is_a_label_conflict(clean: Path) -> None:
    shutil.copy(clean / "train/cat/0.png", clean / "train/dog/copy.png")
    result = inspect_data(clean)
    assert kinds(result) == {"label-conflict": 1}
    assert {m.class_name for m in result.duplicates[0].members} == {"cat", "dog"}


def test_same_image_in_two_splits_is_a_leak(clean: Path) -> None:
    shutil.copy(clean / "train/cat/0.png", clean / "val/cat/copy.png")
    result = inspect_data(clean)
    assert kinds(result) == {"leak": 1}
    assert {m.split for m in result.duplicates[0].members} == {"train", "val"}


def test_two_empty_files_are_unreadable_but_not_duplicates(clean: Path) -> None:
    (clean / "train/cat/e1.jpg").write_bytes(b"")
    (clean / "val/dog/e2.jpg").write_bytes(b"")
    assert kinds(inspect_data(clean)) == {"unreadable": 2}


def test_empty_class_folder(clean: Path) -> None:
    (clean / "train/fox").mkdir()
    write_image(clean / "val/fox/0.png", 500)
    result = inspect_data(clean)
    assert kinds(result) == {"empty-class": 1}
    assert result.train.empty_classes == ("fox",)
    assert result.train.counts["fox"] == 0
    assert result.train.classes == 2


def test_class_without_any_image_is_reported_once(clean: Path) -> None:
    (clean / "train/fox").mkdir()
    assert kinds(inspect_data(clean)) == {"empty-class": 1}


def test_class_id_without_any_image_is_missing(tmp_path: Path) -> None:
    for i in range(4):
        write_image(tmp_path / f"{i}.png", i)
    (tmp_path / "t.csv").write_text("path,label\n0.png,0\n1.png,0\n2.png,2\n3.png,2\n")
    assert inspect_data(tmp_path / "t.csv").train.missing_classes == ("1",)


def test_class_missing_in_one_split(clean: Path) -> None:
    write_image(clean / "val/fox/0.png", 501)
    shutil.rmtree(clean / "val/dog")
    result = inspect_data(clean)
    assert kinds(result) == {"missing-class": 2}
    assert result.splits[0].missing_classes == ("fox",)
    assert result.splits[1].missing_classes == ("dog",)


def test_class_of_a_table_that_only_validation_has(tmp_path: Path) -> None:
    for i in range(4):
        write_image(tmp_path / f"{i}.png", i)
    (tmp_path / "t.csv").write_text("path,label,split\n0.png,a,train\n1.png,a,train\n2.png,a,val\n3.png,b,val\n")
    result = inspect_data(tmp_path / "t.csv")
    assert kinds(result) == {"missing-class": 1}
    assert result.train.missing_classes == ("b",)


def test_nothing_but_empty_classes(tmp_path: Path) -> None:
    result = inspect_data(make_folder(tmp_path, {"": {"a": 0, "b": 0}}))
    assert kinds(result) == {"empty-class": 2}
    assert (result.train.imbalance, result.train.gini, result.train.sizes) == (None, None, None)
    assert result.to_dict()["splits"]["train"]["samples"] == 0


def test_single_image_class(tmp_path: Path) -> None:
    result = inspect_data(make_folder(tmp_path, {"": {"a": 3, "b": 1}}))
    assert kinds(result) == {"single-image": 1}
    assert result.findings[0].examples == ("b",)


def test_tiny_and_odd_shaped_images_and_modes(clean: Path) -> None:
    write_image(clean / "train/cat/tiny.png", 90, (15, 16))
    write_image(clean / "train/cat/wide.png", 91, (100, 20))
    write_image(clean / "train/cat/not_odd.png", 92, (60, 20))
    write_image(clean / "train/dog/grey.png", 93, mode="L")
    result = inspect_data(clean)
    assert kinds(result) == {"tiny": 1, "odd-shape": 1}
    assert [(Path(n.file).name, n.note) for n in result.train.tiny] == [("tiny.png", "15x16")]
    assert [(Path(n.file).name, n.note) for n in result.train.odd_shapes] == [("wide.png", "100x20")]
    assert result.train.sizes is not None
    assert result.train.sizes.modes == {"RGB": 12, "L": 1}
    assert dataclasses.astuple(result.train.sizes.width) == (15, 24.0, 100)
    assert result.train.sizes.distinct == 4


def test_findings_come_worst_first(clean: Path) -> None:
    write_image(clean / "train/cat/tiny.png", 90, (8, 8))
    shutil.copy(clean / "train/cat/0.png", clean / "train/cat/copy.png")
    (clean / "train/cat/bad.jpg").write_bytes(b"x")
    assert [f.severity for f in inspect_data(clean).findings] == ["error", "warning", "note"]


def test_pixels_are_compared_where_there_are_no_files() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    images[3] = images[1]
    source = ArraySource(images, [0, 0, 1, 1])
    probes = probe_source(source, np.arange(4), workers=2, tick=lambda n: None)
    assert same_content({"train": probes}) == [[("train", 1), ("train", 3)]]
    flat = ArraySource(np.zeros((1, 8, 2, 3), np.uint8), [0])
    square = ArraySource(np.zeros((1, 4, 4, 3), np.uint8), [0])
    assert probe_pixels(flat, 0).digest != probe_pixels(square, 0).digest  # same bytes, other shape


def test_limit_reads_some_and_counts_all(clean: Path) -> None:
    calls: list[tuple[int, int]] = []
    result = inspect_data(clean, limit=3, workers=1, progress=lambda done, total: calls.append((done, total)))
    assert [split.checked for split in result.splits] == [3, 3]
    assert [split.samples for split in result.splits] == [9, 4]
    assert calls[-1] == (6, 6)
    assert spread(9, 3).tolist() == [0, 4, 8]
    assert spread(2, 3).tolist() == [0, 1]


def test_limited_findings_name_the_right_file(clean: Path) -> None:
    (clean / "train/dog/2.png").write_bytes(b"broken")  # the last of nine: looked at under any limit above one
    result = inspect_data(clean, limit=3)
    assert [Path(note.file).parts[-2:] for note in result.train.unreadable] == [("dog", "2.png")]


def test_config_with_long_tail_is_inspected_after_the_cut(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"": {"a": 8, "b": 8}})
    config = DataConfig(root=str(root), long_tail="exponential", imbalance=4.0)
    assert inspect_data(str(root)).train.counts == {"a": 8, "b": 8}
    result = inspect_data(config)
    assert result.train.counts == {"a": 8, "b": 2}
    assert "--data.long-tail exponential --data.imbalance 4.0" in result.options


def test_options_are_safe_to_paste(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "my photos", {"": {"a": 2, "b": 2}})
    assert inspect_data(root).options == f"--data.root '{root}'"


def test_json_round_trip(clean: Path) -> None:
    shutil.copy(clean / "train/cat/0.png", clean / "val/dog/copy.png")
    (clean / "train/cat/bad.jpg").write_bytes(b"x")
    content = inspect_data(clean).to_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["splits"]["train"]["counts"] == {"cat": 7, "dog": 3}
    assert content["splits"]["train"]["shot_rule"] == "standard"
    assert content["splits"]["train"]["unreadable"][0]["file"].endswith("bad.jpg")
    assert {f["kind"] for f in content["findings"]} == {"unreadable", "leak", "label-conflict"}
    assert content["duplicates"][0]["across_splits"] is True
    assert content["advice"]


def test_nothing_there_is_an_error_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not found"):
        inspect_data(tmp_path / "nowhere")
    write_image(tmp_path / "flat" / "1.png", 1)
    with pytest.raises(DataError, match="no class folders"):
        inspect_data(tmp_path / "flat")
    with pytest.raises(ConfigError, match="workers"):
        inspect_data(tmp_path, workers=0)


@pytest.mark.skipif("RELATUM_DATA" not in os.environ, reason="set RELATUM_DATA to the folder of real data sets")
def test_real_long_tailed_folder() -> None:
    result = inspect_data(Path(os.environ["RELATUM_DATA"]) / "tiny-imagenet-lt", limit=200)
    assert result.train.samples == 5015
    assert result.train.imbalance == 50.0
    assert result.train.groups == {"many": 18, "medium": 41, "few": 41}
    assert result.findings == ()
