"""Tables and lists as they go wrong: one sentence with the line for training, all lines at once for inspection."""

from __future__ import annotations

import gzip
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from bad_files import noise, plant_folder

from relatum.cli import main
from relatum.config import DataConfig, ObjectiveConfig
from relatum.data import build_loaders, open_splits, read_csv, read_list
from relatum.data.inspect import inspect_data
from relatum.data.table_checks import repeated_paths
from relatum.data.tables import read_lists
from relatum.errors import DataError
from relatum.objectives import build_objective
from relatum.prior import ClassPrior


def _kinds(found) -> dict[str, int]:
    return {finding.kind: finding.count for finding in found.findings}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: no column 'path' since the file is empty"),
        (b"a.png,cat\nb.png,dog\n", "line 1: no column 'path' in the header 'a.png,cat'"),
        (b"path;label\na.png;cat\n", "line 1: no column 'path'.*separated by commas"),
        (b"path,label,path\na.png,cat,b.png\n", "line 1: there are two columns 'path'"),
        ("path,label\na.png,cat\ncaf\u00e9.png,cat\n".encode("latin-1"), "not UTF-8: line 3 has the byte 0xe9"),
        ("path,label\na.png,cat\n".encode("utf-16"), "UTF-16"),
        ("path,label\na.png,cat\n".encode("utf-16-le"), "line 1: a NUL byte"),
        (b"path,label\na.png,cat\nb\0.png,cat\n", "line 3: a NUL byte"),
        (b"path,label\na.png,cat\n,dog\n", "line 3: the path is empty"),
        (b"path,label\na.png,cat\nb.png, \n", "line 3: the label is empty"),
        (b"path,label\na.png,cat\nb.png\n", "line 3: only 1 cells"),
        (b"path,label\na.png,cat\nb, c.png,dog\n", "line 3: 3 cells under a header of 2.*in quotes"),
        (b'path,label\na.png,cat\n"b.png,dog\n', "line 3: .*quote"),
        (b"path,label\na.png,0\nb.png,1.0\n", "line 3: label '1.0' is not a whole number.*write 1"),
        (b"path,label\na.png,0\nb.png,1.5\n", "line 3: label '1.5' is not a whole number"),
        (b"path,label\na.png,0\nb.png,nan\n", "line 3: label 'nan' is not a whole number"),
        (b"path,label\na.png,cat\nb.png,nan\n", "line 3: label 'nan' stands for no value"),
        (b"path,label\na.png,0\nb.png,-1\n", "line 3: label -1 is negative"),
        (b"path,label\na.png,0\nb.png,12345678901234\n", "line 3: label 12345678901234 is too large"),
        (
            b"path,label\na.png,cat\nb.png,dog\n./a.png,dog\n",
            "line 4: .*a.png has label 1 here, but label 0 at .*line 2",
        ),
        (b"path,label,split\na.png,cat,train\nb.png,dog,train\na.png,dog,test\n", "line 4: .*but label 0 at .*line 2"),
    ],
)
def test_a_bad_csv_is_refused_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    with pytest.raises(DataError, match=words) as refusal:
        read_csv(table)
    assert "table.csv" in str(refusal.value)


def test_a_csv_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(b'\xef\xbb\xbfpath,label,\r\n"a, b.png",cat,\r\n\r\n"c ""d"".png",dog,\r\n')
    source = read_csv(table)["train"]
    assert [Path(path).name for path in source.paths] == ["a, b.png", 'c "d".png']
    assert source.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a.jpg 0\nb.jpg 1.0\n", "line 2: 'b.jpg 1.0' is not `path label`"),
        (b"a.jpg 0\nb.jpg nan\n", "line 2"),
        (b"a.jpg 0\n\nb.jpg -1\n", r"label -1 is out of range \(line 3\)"),
        (b"a.jpg 0\nb.jpg 99999999\n", r"label 99999999 is out of range \(line 2\)"),
        ("a.jpg 0\n\u00fc.jpg 1\n".encode("latin-1"), "not UTF-8: line 2 has the byte 0xfc"),
        ("a.jpg 0\n".encode("utf-16"), "UTF-16"),
        (b"a.jpg 0\nb\0.jpg 1\n", "line 2: a NUL byte"),
        (gzip.compress(b"a.jpg 0\n", mtime=0), "gzipped; its name must end in .gz"),
        (b"a.jpg 0\nb.jpg 1\na.jpg 1\n", "line 3: .*a.jpg has label 1 here, but label 0 at .*line 1"),
        (b"a.jpg 0\nb\x1b[31m.jpg x\n", r"b\\x1b\[31m"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as refusal:
        read_list(path)
    assert "list.txt" in str(refusal.value) and "\x1b" not in str(refusal.value)


def test_damaged_gzip_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"folder/%d.jpg %d\n" % (i * 7919 % 10007, i % 5) for i in range(500)))
    path = tmp_path / "list.txt.gz"
    path.write_bytes(whole)
    assert len(read_list(path)) == 500
    refused = 0
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:  # a flipped name or time stamp in the header is no damage to the data
            assert len(read_list(path)) == 500
        except DataError as error:
            refused += 1
            assert "list.txt.gz" in str(error)
    assert refused > 10
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"list\.txt\.gz"):
        read_list(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"list\.txt\.gz"):
        read_list(path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_in_place_of_a_table(tmp_path: Path, make) -> None:
    place = tmp_path / "t.csv"
    make(place)
    kind = "a folder" if place.is_dir() else "a named pipe"
    for read in (read_csv, read_list):
        with pytest.raises(DataError, match=f"{kind}, not a file"):
            read(place)
    root = plant_folder(tmp_path / "photos", {"cat": 2, "dog": 2})
    with pytest.raises(DataError, match=f"cannot read class names .*{kind}, not a file"):
        open_splits(DataConfig(root=str(root), class_names=str(place)))


def test_an_image_listed_twice_is_said_once(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label,split\na.png,cat,train\nb.png,dog,train\na.png,cat,train\na.png,cat,test\n")
    with pytest.warns(UserWarning, match=r"line 4 lists .*a\.png again, after .*line 2: 2 rows name") as said:
        read_csv(table)
    assert len(said) == 1
    (tmp_path / "train.txt").write_text("a.png 0\nb.png 1\n")
    (tmp_path / "test.txt").write_text("c.png 0\nb.png 1\n")
    with pytest.warns(UserWarning, match=r"test\.txt, line 2 lists .*b\.png again, after .*train\.txt, line 2: 1 row"):
        read_lists(tmp_path / "train.txt", test=tmp_path / "test.txt")
    (tmp_path / "test.txt").write_text("b.png 0\n")
    with pytest.raises(DataError, match=r"test\.txt, line 1: .*b\.png has label 0 here.*train\.txt, line 2"):
        read_lists(tmp_path / "train.txt", test=tmp_path / "test.txt")
    (tmp_path / "test.txt").write_text("c.png 0\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_lists(tmp_path / "train.txt", test=tmp_path / "test.txt")


def test_paths_with_equal_hashes_are_told_apart(monkeypatch) -> None:
    paths = [f"{i % 40}.jpg" for i in range(60)]
    expected = [[i, i + 40] for i in range(20)]
    assert repeated_paths(paths) == expected
    monkeypatch.setattr("builtins.hash", lambda _: 7)
    assert repeated_paths(paths) == expected


def test_inspection_lists_every_bad_row_and_reads_the_others(tmp_path: Path, capsys) -> None:
    for i in range(4):
        noise(i).save(tmp_path / f"{i}.png")
    table = tmp_path / "t.csv"
    table.write_text(
        "path,label,split\n0.png,0,train\n1.png,1.0,train\n2.png,1,train\n,1,train\n3.png,1,tset\n3.png,1,val\n"
    )
    found = inspect_data(table)
    assert [words.split(": ")[0].rpartition(" ")[2] for words in found.bad_rows] == ["5", "6", "3"]
    assert _kinds(found)["bad-row"] == 3
    assert found.train.counts == {"0": 1, "1": 1}
    (tmp_path / "l.txt").write_text("0.png 0\n1.png zero\n2.png 1\n3.png -4\n2.png 1\n0.png 1\n")
    (tmp_path / "m.txt").write_text("2.png 1\n")
    capsys.readouterr()
    words = ["inspect", str(tmp_path), "--train-list", str(tmp_path / "l.txt"), "--test-list", str(tmp_path / "m.txt")]
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    kinds = {finding["kind"]: finding["count"] for finding in content["findings"]}
    assert kinds["bad-row"] == 2
    assert kinds["label-conflict"] == 1  # 0.png with two labels
    assert kinds["repeat"] == 1 and kinds["leak"] == 1  # 2.png: twice in train, and in test
    assert main([*words, "--json", "--counts-only"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert {f["kind"]: f["count"] for f in counted["findings"]} == kinds
    assert counted["splits"]["train"]["checked"] == 0
    assert main([*words, "--counts-only", "--plot", str(tmp_path / "p.png")]) == 0
    assert "images not looked into" in capsys.readouterr().out


def test_a_recipe_can_be_inspected(tmp_path: Path, capsys) -> None:
    capsys.readouterr()
    assert main(["inspect", "--recipe", "shapes-lt", "--counts-only", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["splits"]["train"]["imbalance"] == 100 and content["splits"]["train"]["samples"] > 900
    assert main(["inspect", "--class-names", "x"]) == 2


# -- classes that are hardly there -------------------------------------------------------------------------------------


def test_empty_single_and_test_only_classes_are_defined(tmp_path: Path) -> None:
    root = plant_folder(tmp_path / "d", {"train/ant": 9, "train/bee": 1, "test/ant": 2, "test/emu": 2})
    with pytest.raises(DataError, match="test/emu is not among the 2 known classes"):
        open_splits(DataConfig(root=str(root)))
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\nemu\ngnu\n")
    config = DataConfig(root=str(root), class_names=str(names), image_size=16, batch_size=4, normalise="half")
    loaders = build_loaders(config)
    assert loaders.prior.counts.tolist() == [9, 1, 0, 0]
    assert np.bincount(loaders.evals["test"].source.targets, minlength=4).tolist() == [2, 0, 2, 0]
    found = inspect_data(config)
    assert found.train.missing_classes == ("emu", "gnu")
    assert found.splits[1].missing_classes == ("bee", "gnu")
    assert _kinds(found)["single-image"] == 1
    for sampler in ("class-balanced", "square-root", "progressive", "effective-number", "repeat-factor"):
        balanced = build_loaders(DataConfig(**{**config.__dict__, "sampler": sampler}))
        drawn = np.concatenate([batch.targets.numpy() for batch in balanced.train.epoch(0)])
        assert set(drawn.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    "name",
    [
        "cross-entropy", "balanced-softmax", "logit-adjusted", "vector-scaling", "focal", "class-balanced", "ldam",
        "bce", "balanced-bce", "lade",
    ],
)  # fmt: skip
def test_objectives_are_finite_with_a_class_that_has_no_images(name: str) -> None:
    import torch

    prior = ClassPrior([9, 1, 0, 0])
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).clamp(-1, 1).requires_grad_()
    loss = build_objective(ObjectiveConfig(name=name), prior)(logits, torch.tensor([0, 0, 0, 1, 0, 0]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()
