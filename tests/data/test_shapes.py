from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.config import DataConfig
from relatum.data.shapes import (
    COLOURS,
    MATERIALS,
    NAMES,
    STYLES,
    draw_objects,
    sample_params,
    shapes_labels,
    shapes_source,
    shapes_splits,
)
from relatum.data.shapes_drawing import draw_layers, uniform
from relatum.errors import DataError


def upright(count, index=0, **changes):
    """One large, plain, filled object of each class in the middle, without rotation."""
    params = sample_params(np.arange(count), np.full(count, index))
    same = {"x": 0.5, "y": 0.5, "size": 0.42, "angle": 0.0, "material": 0, "style": 0, **changes}
    return replace(params, **{k: np.full(count, v).astype(getattr(params, k).dtype) for k, v in same.items()})


def test_at_least_thirty_classes_of_unique_names():
    assert len(NAMES) == len(set(NAMES)) >= 30


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    rows=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 999)), min_size=1, max_size=5),
)
def test_an_image_depends_on_seed_class_and_index_alone(seed, rows):
    shape, index = np.array([5, 5, *(r[0] for r in rows)] * 30), np.array([3, 4, *(r[1] for r in rows)] * 30)
    images, masks = draw_objects(sample_params(shape, index, seed=seed), 16)
    assert not np.array_equal(images[0], images[1])  # another index is another image …
    for row in (0, 1, len(shape) - 1):
        alone, mask = draw_objects(sample_params(shape[row : row + 1], index[row : row + 1], seed=seed), 16)
        np.testing.assert_array_equal(alone[0], images[row])  # … and company changes no bit
        np.testing.assert_array_equal(mask[0], masks[row])


def test_a_long_tail_holds_the_first_images_of_the_balanced_source():
    full = shapes_source(6, classes=4, image_size=16)
    tail = shapes_source([6, 3, 0, 1], image_size=16)
    assert full.class_names == tail.class_names == NAMES[:4]
    assert tail.targets.tolist() == [0] * 6 + [1] * 3 + [3]
    np.testing.assert_array_equal(tail.images, full.images[[*range(6), 6, 7, 8, 18]])


def test_seeds_and_splits_share_no_image():
    sources = [
        shapes_source(3, image_size=16, seed=s, split=p)
        for s, p in ((0, "train"), (0, "val"), (0, "test"), (1, "train"))
    ]
    images = np.concatenate([s.images for s in sources]).reshape(-1, 16 * 16 * 3)
    assert len(np.unique(images, axis=0)) == len(images) == 4 * 60
    again = shapes_source(3, image_size=16, seed=1)
    np.testing.assert_array_equal(again.images, sources[3].images)


def test_values_use_the_range_and_every_image_has_contents():
    source = shapes_source(5)
    assert source.images.dtype == np.uint8
    assert source.images.shape == (100, 32, 32, 3)
    assert source.images.min() < 20
    assert source.images.max() > 235
    assert source.images.reshape(100, -1).std(axis=1).min() > 5
    _, masks = draw_objects(shapes_labels(5))
    share = masks.reshape(100, -1).mean(axis=1)
    assert share.min() > 0.03
    assert share.max() < 0.7


def test_every_two_classes_have_different_outlines():
    _, masks = draw_objects(upright(len(NAMES), form=0.5), 64)
    for a in range(len(NAMES)):
        for b in range(a):
            union = (masks[a] | masks[b]).sum()
            assert (masks[a] ^ masks[b]).sum() > 0.02 * union, (NAMES[a], NAMES[b])


def test_nearest_mean_knows_upright_objects_of_unseen_proportions():
    means = np.mean([draw_layers(upright(len(NAMES), i), 48)[1] for i in range(8)], axis=0)
    unseen = np.concatenate([draw_layers(upright(len(NAMES), i), 48)[1] for i in range(8, 12)])
    nearest = ((unseen[:, None] - means[None]) ** 2).sum(axis=(2, 3)).argmin(axis=1)
    assert (nearest == np.tile(np.arange(len(NAMES)), 4)).mean() > 0.95


def test_the_object_is_where_the_parameters_say():
    params = upright(1, x=0.3, y=0.7, size=0.2)
    (mask,) = draw_objects(params, 64)[1]
    rows, columns = np.nonzero(mask)
    assert abs(columns.mean() + 0.5 - 0.3 * 64) < 0.5
    assert abs(rows.mean() + 0.5 - 0.7 * 64) < 0.5
    assert abs(np.sqrt(mask.sum() / np.pi) - 0.92 * 0.2 * 64) < 0.3  # class 0 is a disc of 0.92 radii


def test_rotation_turns_the_mask():
    triangle = upright(2).take(slice(1, 2))
    straight = draw_objects(triangle, 65)[1][0]
    turned = draw_objects(replace(triangle, angle=np.array([np.pi / 2], dtype=np.float32)), 65)[1][0]
    assert (straight ^ turned).mean() > 0.05
    assert (np.rot90(straight, -1) ^ turned).mean() < 0.005


@pytest.mark.parametrize(("name", "values"), [("colour", COLOURS), ("material", MATERIALS), ("style", STYLES)])
def test_nuisances_are_independent_of_the_class(name, values):
    params = shapes_labels(400)
    table = np.zeros((20, len(values)))
    np.add.at(table, (params.shape, getattr(params, name)), 1)
    expected = table.sum(axis=0) / 20
    assert expected.min() > 20  # every value occurs
    chi = ((table - expected) ** 2 / expected).sum()
    freedom = 19 * (len(values) - 1)
    assert abs(chi - freedom) < 4 * np.sqrt(2 * freedom)  # neither dependent nor suspiciously even


@pytest.mark.parametrize("name", ["x", "y", "size", "angle", "form"])
def test_pose_is_independent_of_the_class(name):
    params = shapes_labels(400)
    values = getattr(params, name)
    means = np.array([values[params.shape == k].mean() for k in range(20)])
    assert values.std() > 0.02
    assert np.abs(means - values.mean()).max() < 4 * values.std() / np.sqrt(400)


@pytest.mark.parametrize("name", ["material", "style", "colour"])
def test_every_value_of_a_nuisance_changes_the_image_and_never_the_mask(name):
    values = {"material": MATERIALS, "style": STYLES, "colour": COLOURS}[name]
    drawn = [draw_objects(upright(3, **{name: v}), 32) for v in range(len(values))]
    for a in range(len(values)):
        for b in range(a):
            difference = np.abs(drawn[a][0].astype(int) - drawn[b][0]).mean()
            assert difference > 2, (a, b)
            np.testing.assert_array_equal(drawn[a][1], drawn[b][1])


def test_uniform_draws_are_uniform_and_streams_unrelated():
    key = sample_params(np.zeros(20000), np.arange(20000)).key
    one, two = uniform(key, 0), uniform(key, 1, -1, 1)
    assert 0 <= one.min() < one.max() < 1
    assert -1 <= two.min() < two.max() < 1
    assert np.abs(np.histogram(one, 20, (0, 1))[0] - 1000).max() < 150
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.03


def test_splits_follow_the_config():
    splits = shapes_splits(DataConfig(kind="shapes", image_size=8, largest=7))
    assert set(splits) == {"train", "test"}
    assert splits["train"].prior().counts.tolist() == [7] * 20
    assert splits["test"].prior().counts.tolist() == [100] * 20
    assert splits["test"].load(0).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shapes_source(1, classes=99), "1 to"),
        (lambda: shapes_source([1, 2], classes=3), "2 counts for 3"),
        (lambda: shapes_source([1, -2]), "zero or more"),
        (lambda: shapes_source([0.5, 2]), "whole numbers"),
        (lambda: shapes_source(1, image_size=4), "at least 8"),
        (lambda: shapes_source(1, split="tset"), "did you mean 'test'"),
    ],
)
def test_errors(call, words):
    with pytest.raises(DataError, match=words):
        call()
