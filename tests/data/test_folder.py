from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relatum.data.folder import read_folder
from relatum.errors import DataError


def _plant(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), len(name), np.uint8)).save(path, "PNG")


def test_class_folders_are_the_training_split(tmp_path):
    _plant(tmp_path, "dog/1.png", "cat/1.jpg", "cat/deep/er/2.JPEG", "cat/.hidden.png", ".cache/x.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    splits = read_folder(tmp_path)
    assert list(splits) == ["train"]
    train = splits["train"]
    assert train.class_names == ("cat", "dog")
    assert train.targets.tolist() == [0, 0, 1]
    assert sorted(Path(train.describe(i)).name for i in range(3)) == ["1.jpg", "1.png", "2.JPEG"]
    assert train.load(2).shape == (4, 4, 3)


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_splits_share_the_class_map_of_train(tmp_path, val):
    _plant(
        tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", f"{val}/c/1.png", "test/b/1.png", "other/z/1.png"
    )
    splits = read_folder(tmp_path)
    assert list(splits) == ["train", "val", "test"]
    assert splits["val"].targets.tolist() == [2]
    assert splits["test"].targets.tolist() == [1]
    assert all(s.class_names == ("a", "b", "c") for s in splits.values())


def test_numbered_folders_sort_as_numbers_only_if_all_are(tmp_path):
    _plant(tmp_path, "a/2/1.png", "a/10/1.png", "a/1/1.png", "b/2/1.png", "b/10/1.png", "b/x/1.png")
    assert read_folder(tmp_path / "a")["train"].class_names == ("1", "2", "10")
    assert read_folder(tmp_path / "b")["train"].class_names == ("10", "2", "x")


def test_given_names_decide_the_ids(tmp_path):
    _plant(tmp_path, "a/1.png", "b/1.png", "b/2.png")
    source = read_folder(tmp_path, ["b", "rare", "a"])["train"]
    assert source.class_names == ("b", "rare", "a")
    assert source.prior().counts.tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=r"b.*not among"):
        read_folder(tmp_path, ["a", "bb"])


def test_class_called_train_is_a_class(tmp_path):
    _plant(tmp_path, "train/1.png", "bus/1.png")
    assert read_folder(tmp_path)["train"].class_names == ("bus", "train")


def test_unknown_class_in_val_is_named(tmp_path):
    _plant(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/catt/1.png")
    with pytest.raises(DataError, match=r"val/catt.*did you mean 'cat'"):
        read_folder(tmp_path)


@pytest.mark.parametrize("where", ["dog", "train/dog"])
def test_empty_class_folder_is_named_with_the_cure(tmp_path, where):
    _plant(tmp_path / Path(where).parent, "cat/1.png")
    (tmp_path / where).mkdir()
    with pytest.raises(DataError, match=f"{where} holds no images.*remove the folder"):
        read_folder(tmp_path)


def test_missing_and_empty_roots_are_named(tmp_path):
    with pytest.raises(DataError, match=r"not found: .*nowhere"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no class folders"):
        read_folder(tmp_path)
    _plant(tmp_path, "val/a/1.png", "test/a/1.png")
    with pytest.raises(DataError, match="no train"):
        read_folder(tmp_path)
    _plant(tmp_path, "train/a/1.png", "valid/a/1.png")
    with pytest.raises(DataError, match="both val and valid"):
        read_folder(tmp_path)


def test_tiny_imagenet_lt():
    data = os.environ.get("RELATUM_DATA", "")
    root = Path(data) / "tiny-imagenet-lt"
    if not data or not root.is_dir():
        pytest.skip("RELATUM_DATA has no tiny-imagenet-lt")
    splits = read_folder(root)
    train, val = splits["train"], splits["val"]
    assert (len(train), len(val), train.num_classes) == (5015, 2000, 100)
    assert train.prior().counts.max() == 200
    assert train.prior().counts.min() == 4
    assert set(val.prior().counts.tolist()) == {20}
    assert train.load(0).shape == (64, 64, 3)
