from __future__ import annotations

import pickle
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from relatum.config import DataConfig
from relatum.data.source import from_arrays
from relatum.data.splits import open_splits, stratified_holdout
from relatum.errors import ConfigError, DataError


def _source(per_class, seed=0):
    targets = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(per_class)), per_class))
    return from_arrays(np.zeros((len(targets), 1, 1, 3), np.uint8), targets, [f"c{k}" for k in range(len(per_class))])


@settings(max_examples=25, deadline=None)
@given(
    per_class=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum),
    fraction=st.floats(0.001, 0.95),
    seed=st.integers(0, 5),
)
def test_holdout_divides_every_class(per_class, fraction, seed):
    source = _source(per_class)
    train, held = stratified_holdout(source, fraction, seed)
    assert sorted([*train.positions, *held.positions]) == list(range(len(source)))
    assert train.class_names == held.class_names == source.class_names
    for k, n in enumerate(per_class):
        kept, lent = int((train.targets == k).sum()), int((held.targets == k).sum())
        assert kept + lent == n
        if n == 1:
            assert (kept, lent) == (1, 0)
        if n >= 2:
            assert kept >= 1
            assert lent >= 1
            assert abs(lent - n * fraction) <= 1


def test_holdout_is_a_function_of_the_seed():
    source = _source([20, 20])
    draws = [stratified_holdout(source, 0.25, seed)[1].positions.tolist() for seed in (0, 0, 1)]
    assert draws[0] != draws[2]
    assert draws[0] == draws[1]
    assert len(draws[0]) == 10


def test_holdout_of_nothing_and_bad_fractions():
    train, held = stratified_holdout(_source([3, 1]), 0.0)
    assert (len(train), len(held)) == (4, 0)
    for bad in (-0.1, 1.0, 2.0):
        with pytest.raises(ConfigError, match="below 1"):
            stratified_holdout(_source([3]), bad)


def _plant(root, counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(np.full((2, 2, 3), i, np.uint8)).save(root / name / f"{i}.png")


def test_folder_without_splits_is_held_out(tmp_path):
    _plant(tmp_path, {"a": 10, "b": 5, "c": 1})
    splits = open_splits(DataConfig(root=str(tmp_path)))
    assert list(splits) == ["train", "val"]
    assert splits["train"].prior().counts.tolist() == [8, 4, 1]
    assert splits["val"].prior().counts.tolist() == [2, 1, 0]
    assert list(open_splits(DataConfig(root=str(tmp_path), val_fraction=0.0))) == ["train"]


def test_holdout_of_one_image_classes_leaves_no_empty_split(tmp_path):
    _plant(tmp_path, {"a": 1, "b": 1})
    splits = open_splits(DataConfig(root=str(tmp_path)))
    assert list(splits) == ["train"]
    assert len(splits["train"]) == 2


def test_long_tail_cuts_train_only_and_a_test_split_needs_no_holdout(tmp_path):
    _plant(tmp_path / "train", {"a": 8, "b": 8, "c": 8})
    _plant(tmp_path / "test", {"a": 3, "b": 3, "c": 3})
    splits = open_splits(DataConfig(root=str(tmp_path), long_tail="exponential", imbalance=4))
    assert list(splits) == ["train", "test"]
    assert splits["train"].prior().counts.tolist() == [8, 4, 2]
    assert splits["test"].prior().counts.tolist() == [3, 3, 3]


def test_balanced_cut_of_a_folder(tmp_path):
    _plant(tmp_path / "train", {"a": 9, "b": 4})
    _plant(tmp_path / "test", {"a": 3, "b": 2})
    for largest, each in ((0, 4), (3, 3)):
        splits = open_splits(DataConfig(root=str(tmp_path), long_tail="balanced", largest=largest))
        assert splits["train"].prior().counts.tolist() == [each, each]
        assert splits["test"].prior().counts.tolist() == [3, 2]


def test_long_tail_is_cut_before_the_holdout(tmp_path):
    _plant(tmp_path, {"a": 10, "b": 10})
    splits = open_splits(DataConfig(root=str(tmp_path), long_tail="step", imbalance=2, val_fraction=0.4))
    assert splits["train"].prior().counts.tolist() == [6, 3]
    assert splits["val"].prior().counts.tolist() == [4, 2]


def test_subset_seed_changes_cut_and_holdout(tmp_path):
    _plant(tmp_path, {"a": 12, "b": 12})
    config = DataConfig(root=str(tmp_path), long_tail="step", imbalance=2)
    paths = [open_splits(replace(config, subset_seed=s))["train"].paths for s in (0, 1, 0)]
    assert paths[0] != paths[1]
    assert paths[0] == paths[2]


def test_auto_finds_csv_lists_and_cifar(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("path,label,split\na,x,train\nb,y,train\nc,x,val\n")
    assert list(open_splits(DataConfig(root=str(table)))) == ["train", "val"]

    (tmp_path / "train.txt").write_text("a.jpg 0\nb.jpg 1\n")
    (tmp_path / "test.txt").write_text("c.jpg 1\n")
    lists = DataConfig(train_list=str(tmp_path / "train.txt"), test_list=str(tmp_path / "test.txt"), root="/r")
    assert open_splits(lists)["test"].paths == ("/r/c.jpg",)

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    content = {"data": np.zeros((4, 3072), np.uint8), "fine_labels": [0, 0, 1, 1]}
    (folder / "train").write_bytes(pickle.dumps(content))
    splits = open_splits(DataConfig(root=str(tmp_path)))
    assert splits["train"].num_classes == 100
    assert [len(s) for s in splits.values()] == [2, 2]


def test_class_names_file_decides_the_ids(tmp_path):
    _plant(tmp_path / "data", {"a": 3, "b": 3})
    names = tmp_path / "names.txt"
    names.write_text("b\na\n\n")
    config = DataConfig(root=str(tmp_path / "data"), class_names=str(names))
    assert open_splits(config)["train"].class_names == ("b", "a")
    names.write_text("b\n\na\n")
    with pytest.raises(DataError, match="line 2 is empty"):
        open_splits(config)
    with pytest.raises(DataError, match=r"gone\.txt"):
        open_splits(replace(config, class_names=str(tmp_path / "gone.txt")))


def test_shapes_come_from_their_module(monkeypatch):
    made = types.ModuleType("relatum.data.shapes")
    made.shapes_splits = lambda config: {"train": _source([8, 8]), "test": _source([2, 2])}
    monkeypatch.setitem(sys.modules, "relatum.data.shapes", made)
    splits = open_splits(DataConfig(kind="shapes", long_tail="step", imbalance=4))
    assert splits["train"].prior().counts.tolist() == [8, 2]
    assert splits["test"].prior().counts.tolist() == [2, 2]
    with pytest.raises(ConfigError, match="generated"):
        open_splits(DataConfig(kind="shapes", root="x"))


def test_what_is_missing_is_asked_for(tmp_path):
    for kind in ("auto", "folder", "csv", "cifar10"):
        with pytest.raises(DataError, match=r"--data\.root"):
            open_splits(DataConfig(kind=kind))
    with pytest.raises(DataError, match=r"--data\.train-list"):
        open_splits(DataConfig(kind="list", root=str(tmp_path)))
    with pytest.raises(ConfigError, match="did you mean 'folder'"):
        open_splits(DataConfig(kind="foldr", root=str(tmp_path)))
    with pytest.raises(ConfigError, match="kind list"):
        open_splits(DataConfig(kind="folder", root=str(tmp_path), val_list="x"))
    (tmp_path / "l.txt").write_text("a 0\n")
    with pytest.raises(DataError, match=r"--data\.kind list"):
        open_splits(DataConfig(root=str(tmp_path / "l.txt")))
    with pytest.raises(DataError, match="not found"):
        open_splits(DataConfig(root=str(tmp_path / "gone")))
