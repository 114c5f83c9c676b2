from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relatum.data.tables import read_csv, read_list, read_lists
from relatum.errors import DataError


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_names_and_splits(tmp_path):
    text = "split, label ,path,note\ntrain,dog,a b.png,x\nval,cat,c.png,\ntrain,cat,/abs/d.png,\n"
    text += "Valid,dog,e.png,\ntest,dog,f.png,\n"
    splits = read_csv(_write(tmp_path / "t.csv", text), allow_outside=True)
    assert list(splits) == ["train", "val", "test"]
    assert splits["train"].class_names == splits["test"].class_names == ("cat", "dog")
    assert splits["train"].targets.tolist() == [1, 0]
    assert splits["val"].targets.tolist() == [0, 1]
    assert splits["train"].paths == (str(tmp_path / "a b.png"), "/abs/d.png")


def test_csv_images_load_relative_to_file_or_root(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.full((3, 5, 3), 7, np.uint8)).save(tmp_path / "images" / "1.png")
    near = read_csv(_write(tmp_path / "images" / "t.csv", "path,label\n1.png,0\n"))
    far = read_csv(_write(tmp_path / "t.csv", "path,label\n1.png,0\n"), root=tmp_path / "images")
    assert near["train"].load(0).shape == far["train"].load(0).shape == (3, 5, 3)
    with pytest.raises(DataError, match=r"not found.*1\.png"):
        read_csv(tmp_path / "t.csv")["train"].load(0)


def test_csv_with_ids_keeps_them(tmp_path):
    file = _write(tmp_path / "t.csv", "\ufeffpath,label,split\na,10,train\nb,2,train\nc,11,test\n")
    splits = read_csv(file)
    assert splits["train"].targets.tolist() == [10, 2]
    assert splits["train"].num_classes == splits["test"].num_classes == 12


def test_csv_with_class_names_takes_names_before_ids(tmp_path):
    file = _write(tmp_path / "t.csv", "path,label\na,dog\nb,0\nc,2\n")
    assert read_csv(file, class_names=["cat", "dog", "emu"])["train"].targets.tolist() == [1, 0, 2]
    assert read_csv(file, class_names=["2", "0", "dog"])["train"].targets.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        ("", None, "line 1: no column 'path'"),
        ("file,label\na,b\n", None, "line 1: no column 'path'.*path,label"),
        ("path,label\n", None, "no rows"),
        ("path,label\na,x\nb\n", None, "line 3: only 1 cells"),
        ("path,label\na,x\n\n,x\n", None, "line 4: the path is empty"),
        ("path,label\na,\n", None, "line 2: the label is empty"),
        ("path,label,split\na,x,train\nb,x,trian\n", None, "line 3: unknown split 'trian'; did you mean 'train'"),
        ("path,label,split\na,x,val\n", None, "no training rows"),
        ("path,label,split\na,cat,train\nb,catt,val\n", None, "line 3: unknown class 'catt'.*did you mean 'cat'"),
        ("path,label\na,5\n", ["x", "y"], "line 2: label 5 is out of range for 2 classes"),
        ("path,label\na,-1\n", ["x", "y"], "line 2: label -1 is out of range"),
    ],
)
def test_bad_csv_rows_are_named_by_line(tmp_path, text, names, words):
    with pytest.raises(DataError, match=words):
        read_csv(_write(tmp_path / "t.csv", text), class_names=names)


def test_unreadable_csv_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.csv"):
        read_csv(tmp_path / "gone.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match=r"binary\.csv.*UTF-8"):
        read_csv(tmp_path / "binary.csv")


@pytest.mark.parametrize("zipped", [False, True])
def test_list_takes_spaces_and_gzip(tmp_path, zipped):
    text = "train/a 1.jpg 3\n\ntrain/b.jpg\t0\r\n  c.jpg 3  \n"
    path = tmp_path / ("l.txt.gz" if zipped else "l.txt")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    source = read_list(path, "/images")
    assert source.paths == ("/images/train/a 1.jpg", "/images/train/b.jpg", "/images/c.jpg")
    assert source.targets.tolist() == [3, 0, 3]
    assert source.class_names == ("0", "1", "2", "3")
    assert read_list(path).paths[1] == str(tmp_path / "train/b.jpg")
    assert read_list(path, class_names=list("abcde")).class_names == tuple("abcde")
    assert read_list(path, num_classes=7).num_classes == 7


def test_lists_share_one_class_count(tmp_path):
    train = _write(tmp_path / "train.txt", "a 0\nb 2\n")
    test = _write(tmp_path / "test.txt", "c 5\n")
    splits = read_lists(train, test=test, root="/r")
    assert list(splits) == ["train", "test"]
    assert {s.num_classes for s in splits.values()} == {6}
    with pytest.raises(DataError, match=r"test\.txt, entry 1: label 5 is out of range"):
        read_lists(train, None, test, "/r", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.jpg 0\nb.jpg\n", "line 2: 'b.jpg'"),
        ("a.jpg 0\n\nb.jpg cat\n", "line 3: 'b.jpg cat'.*CSV"),
        ("a.jpg 1.5\n", "line 1"),
        ("a.jpg 99999999999999999999\n", "line 1"),
        ("a.jpg 0\nb.jpg -1\n", "entry 2: label -1"),
        ("\n\n", "empty"),
    ],
)
def test_bad_list_lines_are_named(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read_list(_write(tmp_path / "l.txt", text), "/r")


def test_broken_or_missing_list_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt"):
        read_list(tmp_path / "gone.txt")
    (tmp_path / "l.txt.gz").write_bytes(gzip.compress(b"a 0\n" * 100)[:-12])
    with pytest.raises(DataError, match=r"l\.txt\.gz"):
        read_list(tmp_path / "l.txt.gz")
    (tmp_path / "m.txt.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"m\.txt\.gz"):
        read_list(tmp_path / "m.txt.gz")


def test_published_places_lt_lists():
    import json

    data = os.environ.get("RELATUM_DATA", "")
    folder = Path(data) / "lt_splits" / "Places_LT"
    if not data or not folder.is_dir():
        pytest.skip("RELATUM_DATA has no lt_splits")
    files = [folder / f"Places_LT_{split}.txt.gz" for split in ("train", "val", "test")]
    splits = read_lists(*files, root="/places")
    assert [len(s) for s in splits.values()] == [62500, 7300, 36500]
    assert {s.num_classes for s in splits.values()} == {365}
    prior = splits["train"].prior()
    assert prior.counts.tolist() == json.loads((folder.parent / "cls_freq" / "Places_LT.json").read_text())
    assert prior.shot_groups().sizes() == {"many": 131, "medium": 163, "few": 71}
