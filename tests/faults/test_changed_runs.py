"""A run continued with another recipe or other data: refused with the differences, or put on record when allowed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from spoilt_runs import CLASSES, assert_same_end, contents, make_photos, train

from relatum.config import DataConfig
from relatum.data import from_arrays, from_dataset, loaders_from_splits
from relatum.data.source import FileSource
from relatum.errors import ConfigError
from relatum.train import RunDirectory
from relatum.train.fingerprint import fingerprint, split_fingerprint


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Path:
    """Photos, a run on them that ended after four of nine steps, and one that went through."""
    place = tmp_path_factory.mktemp("changed")
    make_photos(place / "photos")
    assert train(place / "photos", place / "run", "--train.max-steps", "4") == 0
    assert train(place / "photos", place / "whole") == 0
    return place


@pytest.fixture
def place(started, tmp_path) -> Path:
    """The same, to be changed: the photos lie elsewhere now, and are the same."""
    return Path(shutil.copytree(started, tmp_path / "moved"))


def _manifest(place: Path) -> dict:
    return json.loads((place / "run" / "manifest.json").read_text())


# -- another recipe ----------------------------------------------------------------------------------------------------


def test_changed_settings_are_refused_with_all_differences_and_the_cure(started, capsys):
    before = contents(started / "run")
    assert train(started / "photos", started / "run", "--train.lr", "0.05", "--objective.name", "focal") == 2
    shown = capsys.readouterr().err
    assert "train.lr was 0.1, now 0.05" in shown
    assert "objective.name was 'balanced-softmax', now 'focal'" in shown
    assert "--allow-changes" in shown
    assert contents(started / "run") == before


def test_allowed_changes_are_said_and_put_on_record(place, capsys):
    root = ["--data.root", str(place / "photos")]
    assert train(place / "photos", place / "run", *root, "--train.lr", "0.05", "--allow-changes") == 0
    shown = capsys.readouterr().err
    assert "goes on after step 4 with changes" in shown
    assert "train.lr was 0.1, now 0.05" in shown
    (entry,) = _manifest(place)["changes"]
    assert entry["step"] == 4
    assert entry["changed"]["train.lr"] == [0.1, 0.05]
    assert _manifest(place)["steps"] == 9
    kept = json.loads((place / "run" / "config.json").read_text())
    assert (kept["train"]["lr"], kept["allow_changes"]) == (0.05, False)  # allowed this once
    assert train(place / "photos", place / "run", "--train.lr", "0.05") == 0
    assert train(place / "photos", place / "run") == 2


def test_an_entry_is_not_doubled_by_a_crash_before_the_settings_were_written(tmp_path):
    RunDirectory(tmp_path, {"a": 1}).update_manifest(status="finished")
    old = (tmp_path / "config.json").read_bytes()
    for _ in range(2):
        with pytest.warns(UserWarning, match="a was 1, now 2"):
            run = RunDirectory(tmp_path, {"a": 2}, allow_changes=True)
        (tmp_path / "config.json").write_bytes(old)
    assert run.manifest["changes"] == [{"step": 0, "changed": {"a": [1, 2]}}]


def test_what_need_not_be_allowed_is_not_put_on_record(place):
    free = ("--train.on-nonfinite", "skip", "--data.workers", "0", "--allow-changes")
    config = json.loads((place / "run" / "config.json").read_text())
    assert train(Path(config["data"]["root"]), place / "run", *free) == 0
    assert "changes" not in _manifest(place)


# -- other data --------------------------------------------------------------------------------------------------------


def _continue(place: Path, *more: str) -> int:
    """Continue the run on the moved photos: its settings are corrected first, so that only the data can differ."""
    path = place / "run" / "config.json"
    config = json.loads(path.read_text())
    config["data"]["root"] = str(place / "photos")
    path.write_text(json.dumps(config, indent=1) + "\n")
    return train(place / "photos", place / "run", *more)


def test_the_same_photos_in_another_place_are_the_same_data(place, started, capsys):
    assert _continue(place) == 0
    assert "after step 4" in capsys.readouterr().err
    assert_same_end(place / "run", started / "whole")


def test_missing_photos_are_refused_in_words(place, capsys):
    for number in (0, 1, 2):
        (place / "photos" / "okapi" / f"{number}.png").unlink()
    before = _manifest(place)
    assert _continue(place) == 2
    shown = capsys.readouterr().err
    assert "holds a run on other data (data.train: 24 images before, 22 now, class okapi 8 → 6, another set" in shown
    assert "data.val: 6 images before, 5 now, class okapi 2 → 1" in shown
    assert "--allow-changes" in shown
    assert _manifest(place)["data"] == before["data"]
    assert _manifest(place)["steps"] == 4
    assert _continue(place, "--allow-changes") == 0
    (entry,) = _manifest(place)["changes"]
    assert entry["step"] == 4
    assert [side["images"] for side in entry["changed"]["data.train"]] == [24, 22]
    assert _manifest(place)["data"]["splits"]["train"]["counts"] == [8, 8, 6]
    assert _continue(place) == 0  # the data is that of the run now


def test_a_renamed_class_and_a_new_one_are_named(place, capsys):
    (place / "photos" / "okapi").rename(place / "photos" / "zebra")
    assert _continue(place) == 2
    assert "data.class_names: gone are okapi and new are zebra" in capsys.readouterr().err


def test_a_photo_by_another_name_is_noticed_and_other_contents_are_not(place, capsys):
    """The second half is what the documentation says: names are compared, not contents."""
    photo = place / "photos" / "ant" / "3.png"
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(photo)
    assert _continue(place, "--train.max-steps", "5") == 0
    photo.rename(photo.with_name("33.png"))
    capsys.readouterr()
    assert _continue(place) == 2
    assert "another set of files, labels or pixels" in capsys.readouterr().err


def test_a_run_of_an_earlier_version_is_continued_and_has_the_entry_then(place):
    path = place / "run" / "manifest.json"
    manifest = _manifest(place)
    del manifest["data"]
    path.write_text(json.dumps(manifest | {"status": "interrupted"}))
    (place / "photos" / "okapi" / "0.png").unlink()
    assert _continue(place) == 0
    assert sum(split["images"] for split in _manifest(place)["data"]["splits"].values()) == 29


# -- the fingerprint ---------------------------------------------------------------------------------------------------


def _arrays(seed: int = 0, images: int = 9):
    pixels = np.random.default_rng(seed).integers(0, 256, (images, 4, 4, 3), dtype=np.uint8)
    return from_arrays(pixels, np.arange(images) % 3, CLASSES)


def test_pixels_labels_order_and_names_of_files_make_the_hash():
    source = _arrays()
    other = source.images.copy()
    other[4, 1, 2, 0] ^= 1
    hashes = {split_fingerprint(found)["sha256"] for found in (
        source, _arrays(), _arrays(1), from_arrays(other, source.targets, CLASSES),
        from_arrays(source.images, source.targets[::-1].copy(), CLASSES), source.subset([1, 0, 2, 3, 4, 5, 6, 7, 8]),
    )}  # fmt: skip
    assert len(hashes) == 5

    def files(*paths, labels=(0, 1)):
        return split_fingerprint(FileSource(paths, labels, CLASSES))["sha256"]

    one = files("/data/a/x.png", "/data/b/x.png")
    assert one == files("/elsewhere/deep/a/x.png", "/elsewhere/deep/b/x.png") == files("a/x.png", "b/x.png")
    others = [("a/x.png", "b/y.png"), ("a/xb/x.png", "b/x.png"), ("b/x.png", "a/x.png")]
    assert len({one, files("a/x.png", "b/x.png", labels=(1, 0)), *(files(*paths) for paths in others)}) == 5
    assert files("/data/ab/x", "/data/ac/x") == files("ab/x", "ac/x")  # folders are not cut in the middle of a name
    assert files("/data/x.png", "/data/x.png") == files("x.png", "x.png")


def test_large_arrays_are_sampled_and_datasets_go_by_their_labels(monkeypatch):
    from relatum.train import fingerprint as module

    whole = split_fingerprint(_arrays(images=300))
    monkeypatch.setattr(module, "_MOST_PIXELS", 300 * 48 // 3)
    assert split_fingerprint(_arrays(images=300)) != whole
    assert split_fingerprint(_arrays(images=300)) == split_fingerprint(_arrays(images=300))
    assert split_fingerprint(_arrays(1, images=300)) != split_fingerprint(_arrays(images=300))
    own = from_dataset([(np.zeros((4, 4, 3), np.uint8), k) for k in (0, 1, 2)], [0, 1, 2], CLASSES)
    assert split_fingerprint(own)["images"] == 3


def test_any_loaders_may_be_checked(tmp_path):
    def build(images, *evals):
        config = DataConfig(image_size=4, batch_size=2, workers=0, augment="none", normalise="half")
        splits = {"train": _arrays(images=images)} | {name: _arrays(7, 6) for name in evals}
        return loaders_from_splits(splits, config)

    with RunDirectory(tmp_path, {}) as run:
        run.check_data(build(9, "val"))
        run.update_manifest(status="finished")
        assert json.loads((tmp_path / "manifest.json").read_text())["data"] == fingerprint(build(9, "val"))
    with RunDirectory(tmp_path, {}) as run:
        run.check_data(build(9, "val"))
        with pytest.raises(ConfigError, match=r"data.val: 6 images before, none now; data.test: none before, 6 now"):
            run.check_data(build(9, "test"))
    with RunDirectory(tmp_path, {}, allow_changes=True) as run, pytest.warns(UserWarning, match="12 now"):
        run.check_data(build(12, "val"))
    assert run.manifest["changes"][0]["changed"].keys() == {"data.train"}
