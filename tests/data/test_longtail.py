from __future__ import annotations

import json
import os
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.data.cifar import read_cifar
from relatum.data.longtail import PROFILES, long_tail_counts, make_long_tailed
from relatum.data.source import from_arrays
from relatum.errors import ConfigError, DataError
from relatum.prior import ClassPrior

FACTORS = (10, 50, 100, 200)
FALLING = [profile for profile in PROFILES if profile != "balanced"]


def _source(per_class, shuffle=None):
    targets = np.repeat(np.arange(len(per_class)), per_class)
    if shuffle is not None:
        targets = np.random.default_rng(shuffle).permutation(targets)
    images = np.zeros((len(targets), 1, 1, 3), np.uint8)
    return from_arrays(images, targets, [f"c{k}" for k in range(len(per_class))])


@pytest.mark.parametrize(
    ("classes", "largest", "totals", "smallest"),
    [
        (10, 5000, (20431, 13996, 12406, 11203), (500, 100, 50, 25)),
        (100, 500, (19573, 12608, 10847, 9502), (50, 10, 5, 2)),
    ],
)
def test_cifar_lt_totals_and_ends(classes, largest, totals, smallest):
    for factor, total, least in zip(FACTORS, totals, smallest, strict=True):
        counts = long_tail_counts("exponential", classes, largest, factor)
        assert (counts[0], counts[-1], counts.sum()) == (largest, least, total)


@pytest.mark.parametrize(
    ("factor", "counts"),
    [
        (10, [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]),
        (50, [5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100]),
        (100, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
        (200, [5000, 2775, 1540, 854, 474, 263, 146, 81, 45, 25]),
    ],
)
def test_cifar10_lt_counts(factor, counts):
    assert long_tail_counts("exponential", 10, 5000, factor).tolist() == counts


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        ("standard", [(69, 31, 0), (41, 41, 18), (35, 35, 30), (30, 31, 39)]),
        ("oltr", [(70, 30, 0), (41, 40, 19), (35, 34, 31), (31, 29, 40)]),
    ],
)
def test_cifar100_lt_groups(rule, sizes):
    for factor, size in zip(FACTORS, sizes, strict=True):
        prior = ClassPrior(long_tail_counts("exponential", 100, 500, factor))
        assert tuple(prior.shot_groups(rule).sizes().values()) == size


def test_cifar100_lt_marked_classes():
    counts = long_tail_counts("exponential", 100, 500, 100)
    assert counts[:6].tolist() == [500, 477, 455, 434, 415, 396]
    assert counts[[34, 35, 69, 70]].tolist() == [102, 98, 20, 19]
    assert counts[-8:].tolist() == [6, 6, 6, 6, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("classes", "largest", "totals"),
    [(10, 5000, (27500, 25500, 25250, 25125)), (100, 500, (27500, 25500, 25250, 25100))],
)
def test_step_totals(classes, largest, totals):
    assert tuple(int(long_tail_counts("step", classes, largest, f).sum()) for f in FACTORS) == totals


def test_step_of_odd_classes_puts_the_middle_into_the_head():
    assert long_tail_counts("step", 5, 40, 4).tolist() == [40, 40, 40, 10, 10]


def test_pareto_has_the_shape_of_imagenet_lt():
    counts = long_tail_counts("pareto", 1000, 1280, 256)
    assert (counts[0], counts[-1]) == (1280, 5)
    # published sorted counts at these ranks; theirs is a random draw, the tolerance is what a draw does
    for rank, published in ((10, 683), (50, 367), (100, 271), (200, 169), (500, 73), (700, 39), (900, 15)):
        assert abs(counts[rank - 1] - published) <= 0.12 * published
    assert abs(counts.sum() - 115846) < 0.06 * 115846


@settings(max_examples=25, deadline=None)
@given(
    profile=st.sampled_from(FALLING),
    classes=st.integers(2, 200),
    largest=st.integers(1, 6000),
    imbalance=st.floats(1, 1000),
)
def test_profiles_fall_from_largest_to_its_quotient(profile, classes, largest, imbalance):
    counts = long_tail_counts(profile, classes, largest, imbalance)
    assert counts.shape == (classes,)
    assert np.all(np.diff(counts) <= 0)
    assert counts[0] == largest
    exact = Fraction(largest) / Fraction(imbalance)
    assert counts[-1] in {max(1, floor(exact)), max(1, floor(exact * (1 + Fraction(1, 10**8))))}


@pytest.mark.parametrize("profile", FALLING)
def test_whole_quotients_are_met_at_the_end(profile):
    for largest in (300, 500, 700, 5000):
        for factor in (2, 3, 5, 7, 10, 50, 100, 0.1 * 1000):
            if largest % factor == 0:
                assert long_tail_counts(profile, 100, largest, factor)[-1] == largest // factor


def test_imbalance_one_is_balanced_and_one_class_is_allowed():
    for profile in PROFILES:
        assert set(long_tail_counts(profile, 7, 30, 1).tolist()) == {30}
        assert long_tail_counts(profile, 1, 30, 10).tolist() == [30]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("exponential", 10, 100, 0.5), ">= 1"),
        (("exponential", 10, 100, float("nan")), ">= 1"),
        (("exponential", 10, 0, 10), "at least one"),
        (("exponential", 0, 10, 10), "at least one"),
        (("exponental", 10, 10, 10), "did you mean 'exponential'"),
    ],
)
def test_bad_settings_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        long_tail_counts(*arguments)


@pytest.mark.parametrize("choice", ["seeded", "first"])
def test_cut_follows_the_profile_and_nests(choice):
    source = _source([50] * 6, shuffle=1)
    weak = make_long_tailed(source, "exponential", 5, choice=choice)
    strong = make_long_tailed(source, "exponential", 25, choice=choice)
    assert weak.prior().counts.tolist() == long_tail_counts("exponential", 6, 50, 5).tolist()
    assert strong.class_names == source.class_names
    assert set(strong.positions) < set(weak.positions)
    assert np.array_equal(strong.targets, source.targets[strong.positions])
    assert np.all(np.diff(strong.positions) > 0)


def test_choice_and_seed_decide_which_images_stay():
    source = _source([40] * 4, shuffle=2)
    draw = {s: make_long_tailed(source, "step", 4, seed=s).positions.tolist() for s in (0, 1)}
    assert draw[0] != draw[1]
    assert draw[0] == make_long_tailed(source, "step", 4, seed=0).positions.tolist()
    first = make_long_tailed(source, "step", 4, choice="first", seed=1)
    last_class = np.flatnonzero(source.targets == 3)
    assert first.positions[first.targets == 3].tolist() == last_class[:10].tolist()


def test_seeded_draw_is_the_one_of_the_published_code():
    source = _source([30] * 3, shuffle=3)
    kept = make_long_tailed(source, "exponential", 10, seed=0)
    state = np.random.get_state()
    np.random.seed(0)  # what the published CIFAR-LT code does, class by class
    expected = []
    for k, count in enumerate(long_tail_counts("exponential", 3, 30, 10)):
        where = np.where(source.targets == k)[0]
        np.random.shuffle(where)
        expected += where[:count].tolist()
    np.random.set_state(state)
    assert kept.positions.tolist() == sorted(expected)


def test_none_is_no_cut():
    source = _source([3, 2])
    assert make_long_tailed(source, "none", 100) is source


def test_short_class_is_named_with_a_largest_that_works():
    source = _source([100, 100, 12, 100])
    with pytest.raises(DataError, match=r"class 2 \('c2'\) has 12 images.*wants 21.*largest to 60") as caught:
        make_long_tailed(source, "exponential", 10)
    best = int(str(caught.value).split("set largest to ")[1].split(" ")[0])
    assert make_long_tailed(source, "exponential", 10, largest=best).prior().counts[0] == best
    with pytest.raises(DataError):
        make_long_tailed(source, "exponential", 10, largest=best + 1)


def test_class_without_images_is_named():
    with pytest.raises(DataError, match=r"'c1'.*has 0 images.*add images"):
        make_long_tailed(_source([5, 0, 5]), "exponential", 2)


@pytest.mark.parametrize(("largest", "each"), [(0, 12), (7, 7), (12, 12)])
def test_balanced_keeps_as_many_of_each_class(largest, each):
    source = _source([30, 12, 50], shuffle=4)
    kept = make_long_tailed(source, "balanced", 1.0, largest)
    assert kept.prior().counts.tolist() == [each] * 3
    assert kept.class_names == source.class_names and np.all(np.diff(kept.positions) > 0)
    assert long_tail_counts("balanced", 3, each, 100.0).tolist() == [each] * 3  # an imbalance plays no part


def test_balanced_draws_as_the_long_tail_does():
    source = _source([40] * 4, shuffle=5)
    balanced = {seed: make_long_tailed(source, "balanced", 1.0, 20, seed=seed) for seed in (0, 1)}
    assert balanced[0].positions.tolist() != balanced[1].positions.tolist()
    tail = make_long_tailed(source, "exponential", 8, seed=0)
    for k, count in enumerate(tail.prior().counts):
        kept, drawn = (set(s.positions[s.targets == k].tolist()) for s in (tail, balanced[0]))
        assert kept <= drawn if count <= 20 else kept > drawn
    first = make_long_tailed(source, "balanced", 1.0, 3, choice="first")
    assert first.positions[first.targets == 2].tolist() == np.flatnonzero(source.targets == 2)[:3].tolist()


def test_balanced_names_the_class_that_is_too_small():
    source = _source([200, 150, 200])
    with pytest.raises(
        DataError, match=r"class 1 \('c1'\) has 150 images.*balanced profile wants 160.*to 150"
    ) as caught:
        make_long_tailed(source, "balanced", 1.0, 160)
    assert "imbalance" not in str(caught.value)
    assert make_long_tailed(source, "balanced", 1.0, 116).prior().counts.tolist() == [116] * 3
    with pytest.raises(DataError, match=r"'c1'.*has 0 images.*add images"):
        make_long_tailed(_source([5, 0, 5]), "balanced", 1.0)


def test_class_counts_of_the_published_files():
    data = os.environ.get("RELATUM_DATA", "")
    folder = Path(data) / "lt_splits" / "cls_freq"
    if not data or not folder.is_dir():
        pytest.skip("RELATUM_DATA has no lt_splits")
    files = sorted(folder.glob("CIFAR-*-LT_IMBA*.json"))
    assert len(files) == 5
    for file in files:
        classes, factor = int(file.stem.split("-")[1]), int(file.stem.split("IMBA")[1])
        ours = long_tail_counts("exponential", classes, 50000 // classes, factor)
        assert ours.tolist() == json.loads(file.read_text()), file.name


def test_real_cifar100_is_cut_from_its_partial_file():
    data = os.environ.get("RELATUM_DATA", "")
    if not data or not (Path(data) / "cifar-100-python").is_dir():
        pytest.skip("RELATUM_DATA has no cifar-100-python")
    train = read_cifar(data, "cifar100")["train"]
    for factor, total in zip(FACTORS, (19573, 12608, 10847, 9502), strict=True):
        assert len(make_long_tailed(train, "exponential", factor, largest=500, choice="first")) == total
    with pytest.raises(DataError, match="wants"):
        make_long_tailed(train, "exponential", 5, largest=500)
