from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from relatum.data.cifar import load_pickle, read_cifar
from relatum.errors import ConfigError, DataError


def _planes(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def _dump(path, content, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def _cifar100(folder, n=6, protocol=2):
    data, labels = _planes(n), [99 - i for i in range(n)]
    _dump(folder / "train", {"data": data, "fine_labels": labels, "coarse_labels": [0] * n}, protocol)
    return data, labels


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pixels_and_labels_of_every_pickle_protocol(tmp_path, protocol):
    data, labels = _cifar100(tmp_path / "cifar-100-python", protocol=protocol)
    train = read_cifar(tmp_path, "cifar100")["train"]
    assert train.images.shape == (6, 32, 32, 3)
    assert train.targets.tolist() == labels
    # row-major red plane, then green, then blue
    assert train.load(2)[3, 5].tolist() == [data[2, c * 1024 + 3 * 32 + 5] for c in range(3)]


def test_root_may_be_the_folder_and_meta_names_the_classes(tmp_path):
    folder = tmp_path / "cifar-100-python"
    _cifar100(folder)
    splits = read_cifar(folder, "cifar100")
    assert list(splits) == ["train"]
    assert splits["train"].class_names[99] == "99"
    _dump(folder / "meta", {"fine_label_names": [f"thing {k}" for k in range(100)]})
    _dump(folder / "test", {"data": _planes(2), "fine_labels": [0, 1]})
    splits = read_cifar(folder, "cifar100")
    assert splits["test"].class_names[99] == "thing 99"
    assert len(splits["test"]) == 2
    assert read_cifar(folder, "cifar100", [f"n{k}" for k in range(100)])["train"].class_names[3] == "n3"


def test_cifar10_reads_the_batches_that_are_there(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    for i in (2, 5):
        _dump(folder / f"data_batch_{i}", {"data": _planes(3, seed=i), "labels": [i, 1, 0]})
    _dump(folder / "test_batch", {"data": _planes(1), "labels": [9]})
    splits = read_cifar(tmp_path, "cifar10")
    assert splits["train"].targets.tolist() == [2, 1, 0, 5, 1, 0]
    assert splits["test"].num_classes == 10
    assert np.array_equal(splits["train"].load(3)[0, 0, 0], _planes(3, seed=5)[0, 0])


class _Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_malicious_pickle_runs_nothing(tmp_path):
    trap = tmp_path / "trap"
    pickle.loads(pickle.dumps(_Evil(trap)))
    assert trap.is_dir()  # the pickle does run code where it is trusted
    trap.rmdir()
    folder = tmp_path / "cifar-100-python"
    _dump(folder / "train", {"data": _planes(1), "fine_labels": [0], "x": _Evil(trap)})
    with pytest.raises(DataError, match=r"train.*mkdir.*could run code"):
        read_cifar(tmp_path, "cifar100")
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__class__\n.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"not a pickle",
        b"",
        pickle.dumps({"data": 1})[:-3],
    ],
)
def test_foreign_or_damaged_pickles_are_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match="f"):
        load_pickle(tmp_path / "f")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "no 'data'"),
        ({"data": _planes(2), "labels": [0, 1]}, "fine_labels"),
        ({"data": _planes(2), "fine_labels": [0]}, "2, 3072.*1 labels"),
        ({"data": _planes(2), "fine_labels": 3}, "not a list"),
        ({"data": _planes(2), "fine_labels": [0.5, 1.5]}, "whole number"),
        ({"data": _planes(2).astype(np.float32), "fine_labels": [0, 1]}, "float32"),
        ({"data": _planes(2), "fine_labels": [0, 100]}, "item 1 of cifar100 train.*label 100"),
    ],
)
def test_wrong_content_is_named(tmp_path, content, words):
    _dump(tmp_path / "train", content)
    with pytest.raises(DataError, match=words):
        read_cifar(tmp_path, "cifar100")


def test_missing_data_and_unknown_name(tmp_path):
    with pytest.raises(DataError, match="cifar-10-batches-py/data_batch_1"):
        read_cifar(tmp_path, "cifar10")
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        read_cifar(tmp_path, "cifar1000")


def test_real_cifar100():
    data = os.environ.get("RELATUM_DATA", "")
    if not data or not (Path(data) / "cifar-100-python").is_dir():
        pytest.skip("RELATUM_DATA has no cifar-100-python")
    splits = read_cifar(data, "cifar100")
    train, test = splits["train"], splits["test"]
    assert (len(train), len(test)) == (19573, 10000)
    assert train.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert set(test.prior().counts.tolist()) == {100}
    assert (train.prior().counts[0], train.prior().counts[99]) == (500, 50)
