from __future__ import annotations

import numpy as np
import pytest
import torch

from relatum.data.source import ArraySource, DatasetSource, FileSource, from_arrays, from_dataset
from relatum.errors import DataError


def _images(n, size=4, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def test_array_source_gives_its_images_and_counts():
    images = _images(5)
    source = from_arrays(images, [0, 2, 2, 1, 2], ["a", "b", "c"])
    assert len(source) == 5
    assert source.targets.dtype == np.int64
    assert source.class_names == ("a", "b", "c")
    assert np.array_equal(source.load(3), images[3])
    assert source.prior().counts.tolist() == [1, 1, 3]
    assert source.prior().names == ("a", "b", "c")
    assert [m.tolist() for m in source.members()] == [[0], [3], [1, 2, 4]]


def test_names_default_to_ids_and_absent_classes_keep_their_place():
    source = from_arrays(_images(2), [0, 3])
    assert source.class_names == ("0", "1", "2", "3")
    assert source.prior().counts.tolist() == [1, 0, 0, 1]
    assert [len(m) for m in source.members()] == [1, 0, 0, 1]


@pytest.mark.parametrize("kind", ["array", "file", "dataset"])
def test_subset_keeps_class_ids_names_and_origin(kind):
    images, targets, names = _images(6), [2, 0, 1, 2, 0, 1], ["x", "y", "z"]
    if kind == "array":
        source = ArraySource(images, targets, names)
    elif kind == "file":
        source = FileSource([f"{i}.png" for i in range(6)], targets, names)
    else:
        source = DatasetSource([(im, t) for im, t in zip(images, targets, strict=True)], targets, names)
    part = source.subset([5, 0, 3]).subset([2, 0])
    assert part.targets.tolist() == [2, 1]
    assert part.class_names == ("x", "y", "z")
    assert part.positions.tolist() == [3, 5]
    assert part.name == source.name
    assert len(source) == 6
    if kind == "file":
        assert part.describe(0) == "3.png"
    else:
        assert np.array_equal(part.load(1), images[5])
        assert part.describe(1) == f"item 5 of {source.name}"


def test_subset_takes_masks_and_refuses_what_is_not_there():
    source = from_arrays(_images(4), [0, 1, 0, 1])
    assert source.subset(source.targets == 1).positions.tolist() == [1, 3]
    assert len(source.subset([])) == 0
    for bad in ([4], [-1], [0.5], np.array([True, False])):
        with pytest.raises(DataError, match="0 to 3"):
            source.subset(bad)


@pytest.mark.parametrize(
    ("targets", "names", "words"),
    [
        ([0, 1, 3], ["a", "b", "c"], "item 2 .*label 3.*0 to 2"),
        ([0, -1, 1], None, "item 1 .*label -1"),
        ([0, 1], None, "3 images but 2 targets; item 2"),
        ([0.0, 1.0, 1.0], None, "whole number"),
        (["a", "b", "b"], None, "class ids"),
        ([[0], [1], [1]], None, "shape"),
        ([0, 1, 1], ["a", "a"], "'a'.*twice"),
    ],
)
def test_bad_targets_are_named(targets, names, words):
    with pytest.raises(DataError, match=words):
        from_arrays(_images(3), targets, names)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), "uint8.*float32"),
        (np.zeros((2, 3, 4, 4), np.uint8), r"\(N, H, W, 3\)"),
        (np.zeros((2, 4, 4), np.uint8), "grey channel"),
    ],
)
def test_bad_image_arrays_are_refused(images, words):
    with pytest.raises(DataError, match=words):
        from_arrays(images, [0, 1])


class _Set:
    def __init__(self, items, targets=None):
        self.items = items
        if targets is not None:
            self.targets = targets

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_dataset_images_of_every_form_become_the_same_pixels():
    from PIL import Image

    image = _images(1)[0]
    chw = torch.from_numpy(image).permute(2, 0, 1)
    forms = [Image.fromarray(image), image, chw, chw.float() / 255, chw.double() / 255]
    source = from_dataset(_Set([(f, 0) for f in forms], [0] * len(forms)))
    for i in range(len(forms)):
        loaded = source.load(i)
        assert loaded.dtype == np.uint8
        assert np.array_equal(loaded, image), i


def test_dataset_grey_images_get_three_channels():
    grey = _images(1)[0][:, :, 0]
    forms = [grey, grey[:, :, None], torch.from_numpy(grey)[None]]
    source = from_dataset(_Set([(f, 0) for f in forms]), targets=[0, 0, 0])
    for i in range(3):
        assert np.array_equal(source.load(i), np.repeat(grey[:, :, None], 3, axis=2))


def test_dataset_takes_targets_and_classes_of_the_dataset():
    data = _Set([(_images(1)[0], torch.tensor(1))], torch.tensor([1]))
    data.classes = ["cat", "dog"]
    source = from_dataset(data)
    assert source.class_names == ("cat", "dog")
    assert source.name == "_Set"
    assert source.load(0).shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ((np.zeros((4, 4, 3), np.float32), 0), "uint8"),
        ((torch.full((3, 4, 4), -0.5), 0), "Normalize"),
        ((torch.full((3, 4, 4), float("nan")), 0), "Normalize"),
        ((torch.zeros(4, 4, 3), 0), r"\(3, H, W\)"),
        ((np.zeros((4, 4, 3), np.uint8), 1), "label 1 but `targets` says 0"),
        (np.zeros((4, 4, 3), np.uint8), "pairs"),
    ],
)
def test_bad_dataset_items_are_named(item, words):
    source = from_dataset(_Set([item], [0]))
    with pytest.raises(DataError, match=f"item 0 of _Set.*{words}"):
        source.load(0)


def test_given_targets_overrule_the_labels_of_the_items():
    source = from_dataset(_Set([(_images(1)[0], 7)], [7]), targets=[0])
    assert source.targets.tolist() == [0]
    assert source.load(0).shape == (4, 4, 3)


def test_dataset_without_targets_or_of_other_length_is_refused():
    with pytest.raises(DataError, match="targets="):
        from_dataset(_Set([1, 2]))
    with pytest.raises(DataError, match="2 images but 3 targets"):
        from_dataset(_Set([1, 2]), targets=[0, 1, 1])
