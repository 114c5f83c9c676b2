"""ClassPrior: counts, frequencies, shot groups at their boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.errors import ConfigError, DataError
from relatum.prior import GROUPS, SHOT_RULES, ClassPrior, ShotGroups


@pytest.mark.parametrize(
    ("count", "standard", "oltr"),
    [
        (101, "many", "many"),
        (100, "medium", "many"),
        (99, "medium", "medium"),
        (21, "medium", "medium"),
        (20, "medium", "few"),
        (19, "few", "few"),
        (1, "few", "few"),
        (0, "few", "few"),
    ],
)
def test_boundaries_of_the_count_rules(count, standard, oltr):
    prior = ClassPrior([count, 500])
    for rule, expected in (("standard", standard), ("oltr", oltr)):
        groups = prior.shot_groups(rule)
        assert 0 in groups.classes(expected)
        assert 1 in groups.classes("many")
        assert sum(groups.sizes().values()) == 2


@pytest.mark.parametrize(
    ("rule", "classes", "sizes"),
    [("mislas", 100, (36, 35, 29)), ("prior-lt", 100, (33, 33, 34)), ("cifar10", 10, (3, 4, 3))],
)
def test_position_rules_look_at_the_class_id_only(rule, classes, sizes):
    rising = ClassPrior(np.arange(1, classes + 1)).shot_groups(
        rule
    )  # the rarest class has id 0 and is "many" all the same
    assert tuple(rising.sizes().values()) == sizes
    assert np.array_equal(rising.group, np.sort(rising.group))
    falling = ClassPrior(np.arange(classes, 0, -1)).shot_groups(rule)
    assert np.array_equal(rising.group, falling.group)
    with pytest.raises(ConfigError, match=f"is defined for {classes} classes, not for 7"):
        ClassPrior([1] * 7).shot_groups(rule)


@pytest.mark.parametrize(
    ("classes", "sizes"), [(3, (1, 1, 1)), (9, (3, 3, 3)), (10, (4, 3, 3)), (1, (1, 0, 0)), (2, (1, 1, 0))]
)
def test_thirds_rank_the_classes_by_count(classes, sizes):
    counts = np.random.default_rng(0).permutation(np.arange(1, classes + 1))
    groups = ClassPrior(counts).shot_groups("thirds")
    assert tuple(groups.sizes().values()) == sizes
    assert counts[groups.classes("many")].min() > counts[groups.classes("medium")].max(initial=0)
    assert counts[groups.classes("medium")].min(initial=99) > counts[groups.classes("few")].max(initial=0)


def test_thirds_break_ties_by_class_id():
    assert ClassPrior([5, 5, 5]).shot_groups("thirds").group.tolist() == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any))
def test_every_class_is_in_exactly_one_group(counts):
    prior = ClassPrior(counts)
    for rule in ("standard", "oltr", "thirds"):
        groups = prior.shot_groups(rule)
        together = np.concatenate([groups.classes(name) for name in GROUPS])
        assert sorted(together.tolist()) == list(range(len(counts)))
        assert groups.sizes() == {name: len(groups.classes(name)) for name in GROUPS}


def test_an_unknown_rule_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'standard'"):
        ClassPrior([1, 2]).shot_groups("standart")
    assert set(SHOT_RULES) == {"standard", "oltr", "mislas", "prior-lt", "cifar10", "thirds"}
    assert isinstance(ClassPrior([1]).shot_groups(), ShotGroups)


def test_frequencies_equal_their_definition():
    prior = ClassPrior([60, 30, 10])
    assert prior.train_prior == pytest.approx([0.6, 0.3, 0.1], rel=1e-15)
    assert prior.log_prior == pytest.approx(np.log([0.6, 0.3, 0.1]), rel=1e-15)
    assert prior.imbalance == 6.0
    assert prior.num_classes == 3
    assert prior.counts.dtype == np.int64
    assert "classes=3, samples=100, imbalance=6" in repr(prior)


def test_a_class_without_samples_counts_as_one_where_a_logarithm_is_needed():
    prior = ClassPrior([8, 0, 2])
    assert prior.counts.tolist() == [8, 0, 2]
    assert prior.safe_counts.tolist() == [8, 1, 2]
    assert prior.train_prior.sum() == pytest.approx(1.0)
    assert np.isfinite(prior.log_prior).all()
    assert prior.imbalance == 4.0  # over the smallest class that is there


def test_the_test_prior_is_uniform_unless_given():
    assert ClassPrior([3, 1]).test_prior.tolist() == [0.5, 0.5]
    assert ClassPrior([3, 1], test_prior=[1, 3]).test_prior.tolist() == [0.25, 0.75]


def test_names_come_from_a_mapping_or_are_numbers():
    assert ClassPrior({"ox": 3, "ant": 1}).names == ("ox", "ant")
    assert ClassPrior({"ox": 3, "ant": 1}).counts.tolist() == [3, 1]
    assert ClassPrior({"ox": 3, "ant": 1}, names=("a", "b")).names == ("a", "b")
    assert ClassPrior([3, 1]).names == ("0", "1")
    assert ClassPrior(np.array([2.0, 4.0])).counts.tolist() == [2, 4]
    assert ClassPrior(torch.tensor([2, 4])).counts.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([], "one number per class"),
        (5, "one number per class"),
        ([[1, 2]], "one number per class"),
        ([[1, 2], [3]], "whole numbers"),
        (["many", "few"], "whole numbers"),
        ([1, None], "whole numbers"),
        ([1, -1], "zero or more"),
        ([1, 0.5], "whole numbers"),
        ([1, float("nan")], "whole numbers"),
        ([1, float("inf")], "whole numbers"),
        ([0, 0], "all class counts are zero"),
    ],
)
def test_counts_that_are_none_are_a_data_error(counts, words):
    with pytest.raises(DataError, match=words):
        ClassPrior(counts)


@pytest.mark.parametrize("given_prior", [[1], [1, 0], [1, -1], [1, float("nan")], [[1, 2]]])
def test_a_test_prior_must_be_positive_and_fit(given_prior):
    with pytest.raises(DataError, match="test prior must hold 2 positive numbers"):
        ClassPrior([1, 2], test_prior=given_prior)


def test_names_must_be_as_many_as_counts():
    with pytest.raises(DataError, match="1 class names for 2 counts"):
        ClassPrior([1, 2], names=["a"])


# -- from targets ------------------------------------------------------------------------------------------------------


def test_targets_are_counted_absent_classes_included():
    assert ClassPrior.from_targets([0, 2, 2]).counts.tolist() == [1, 0, 2]
    assert ClassPrior.from_targets([0, 2, 2], num_classes=5).counts.tolist() == [1, 0, 2, 0, 0]
    assert ClassPrior.from_targets(torch.tensor([1, 1]), names=("a", "b", "c")).counts.tolist() == [0, 2, 0]
    assert ClassPrior.from_targets(np.array([1, 1], dtype=np.uint8), names=("a", "b")).names == ("a", "b")
    assert ClassPrior.from_targets([True, False, True]).counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        ([0, 3], {"num_classes": 3}, "label 3 is out of range for 3 classes; labels must be 0 to 2"),
        ([0, 2], {"names": ("a", "b")}, "label 2 is out of range for 2 classes; labels must be 0 to 1"),
        ([0, -1], {"num_classes": 3}, "label -1 is out of range for 3 classes"),
        ([0, -1], {}, "label -1 is out of range; labels are 0 or more"),
        ([[0, 1]], {}, "one class id per sample"),
        ([0.5, 1.0], {}, "one class id per sample"),
        (["ox"], {}, "one class id per sample"),
        ([], {}, "one number per class"),
        ([], {"num_classes": 2}, "all class counts are zero"),
    ],
)
def test_targets_that_cannot_be_counted_are_a_data_error(targets, options, words):
    with pytest.raises(DataError, match=words):
        ClassPrior.from_targets(targets, **options)
