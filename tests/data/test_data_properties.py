"""What holds for all sources, splits, samplers and quarantines, whatever the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relatum.config import DataConfig
from relatum.data import ArraySource, DatasetSource, FileSource, build_sampler, make_long_tailed, stratified_holdout
from relatum.data.decode import ImageError
from relatum.data.files import shown
from relatum.data.quarantine import set_aside
from relatum.data.samplers import SAMPLERS
from relatum.data.table_checks import repeated_paths
from relatum.errors import DataError

FEW = settings(max_examples=40, deadline=None)
labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)
NAMES = ("a", "b", "c", "d", "e")


class _Items:
    """A dataset whose item i is an image full of i."""

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int):
        return np.full((2, 2, 3), index, np.uint8), self.targets[index]


class _Torn(FileSource):
    """Files of which those whose name is in `bad` cannot be read."""

    bad: frozenset[str] = frozenset()

    def load(self, index: int) -> np.ndarray:
        if self.paths[index] in self.bad:
            raise ImageError(f"cannot read {self.paths[index]}", "torn")
        return np.zeros((2, 2, 3), np.uint8)


def _sources(targets: list[int]):
    images = np.arange(len(targets), dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    yield ArraySource(images, targets, NAMES)
    yield DatasetSource(_Items(targets), class_names=NAMES)
    yield FileSource([f"{i}.png" for i in range(len(targets))], targets, NAMES)


# -- sources -----------------------------------------------------------------------------------------------------------


@FEW
@given(labels, st.data())
def test_a_subset_of_a_subset_is_the_subset_of_both(targets, data) -> None:
    first = data.draw(st.lists(st.integers(0, len(targets) - 1), max_size=40))
    second = data.draw(st.lists(st.integers(0, len(first) - 1), max_size=20)) if first else []
    for source in _sources(targets):
        twice, once = source.subset(first).subset(second), source.subset([first[i] for i in second])
        assert twice.positions.tolist() == once.positions.tolist() == [first[i] for i in second]
        assert twice.targets.tolist() == once.targets.tolist() == [targets[first[i]] for i in second]
        assert twice.class_names == source.class_names and twice.name == source.name
        for i, position in enumerate(twice.positions.tolist()):
            assert twice.describe(i) == once.describe(i) == source.describe(position)
            if not isinstance(source, FileSource):
                assert twice.load(i)[0, 0, 0] == position


@FEW
@given(labels)
def test_members_and_prior_count_every_image_once(targets) -> None:
    for source in _sources(targets):
        members = source.members()
        assert len(members) == source.num_classes == 5
        assert sorted(np.concatenate(members).tolist()) == list(range(len(targets)))
        assert all((source.targets[m] == k).all() and (np.diff(m) > 0).all() for k, m in enumerate(members))
        assert source.prior().counts.tolist() == [len(m) for m in members]


@FEW
@given(labels, st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_mask_is_the_places_where_it_is_true(targets, mask) -> None:
    chosen = np.array(mask[: len(targets)])
    for source in _sources(targets):
        assert source.subset(chosen).positions.tolist() == np.flatnonzero(chosen).tolist()


@FEW
@given(labels, st.integers(-3, 80))
def test_indices_outside_are_refused(targets, index) -> None:
    assume(not 0 <= index < len(targets))
    for source in _sources(targets):
        with pytest.raises(DataError, match="subset of"):
            source.subset([index])


@FEW
@given(st.text(max_size=30))
def test_shown_names_are_printable_and_stay_what_they_are(name) -> None:
    text = shown(name)
    assert shown(text) == text
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)
    if name.isprintable():
        assert text == name
    text.encode()  # nothing is left that a file or a terminal could not take


@FEW
@given(st.lists(st.sampled_from(["a.jpg", "./a.jpg", "b/c.jpg", "b//c.jpg", "d.jpg", "e.jpg"]), max_size=12))
def test_repeated_paths_are_those_that_a_dictionary_finds(names) -> None:
    plain = [f"/r/{name}".replace("/./", "/").replace("//", "/") for name in names]
    expected = [[i for i, p in enumerate(plain) if p == path] for path in dict.fromkeys(plain)]
    assert sorted(repeated_paths([f"/r/{name}" for name in names])) == sorted(g for g in expected if len(g) > 1)


# -- splits ------------------------------------------------------------------------------------------------------------


@FEW
@given(labels, st.floats(0, 0.95), st.integers(0, 99))
def test_a_hold_out_is_disjoint_complete_stratified_and_repeatable(targets, fraction, seed) -> None:
    source = FileSource([f"{i}" for i in range(len(targets))], targets, NAMES)
    train, held = stratified_holdout(source, fraction, seed)
    assert sorted([*train.positions, *held.positions]) == list(range(len(targets)))
    assert (np.diff(train.positions) > 0).all() and (np.diff(held.positions) > 0).all()
    for k, images in enumerate(np.bincount(targets, minlength=5)):
        lent = int((held.targets == k).sum())
        assert abs(lent - images * fraction) <= 1
        assert lent < images or images == 0
        assert lent >= (images >= 2 and fraction > 0)
    again = stratified_holdout(source, fraction, seed)
    assert again[0].paths == train.paths and again[1].paths == held.paths


@FEW
@given(labels, st.integers(0, 4), st.integers(1, 20), st.integers(0, 99))
def test_the_hold_out_of_a_class_does_not_depend_on_the_others(targets, grown, more, seed) -> None:
    """Images that come to one class at the end leave the hold-out of the other classes as it was."""
    small = FileSource([str(i) for i in range(len(targets))], targets, NAMES)
    longer = targets + [grown] * more
    large = FileSource([str(i) for i in range(len(longer))], longer, NAMES)
    held = [stratified_holdout(source, 0.3, seed)[1] for source in (small, large)]
    others = [[p for p, k in zip(h.paths, h.targets, strict=True) if k != grown] for h in held]
    assert others[0] == others[1]


@FEW
@given(st.sampled_from(["exponential", "step", "balanced"]), st.floats(1, 20), st.integers(0, 9))
def test_a_long_tail_is_a_subset_in_order_and_nested(profile, imbalance, seed) -> None:
    targets = np.tile(np.arange(5), 20)
    source = FileSource([str(i) for i in range(100)], targets, NAMES)
    cut = make_long_tailed(source, profile, imbalance, 20, seed=seed)
    assert (np.diff(cut.positions) > 0).all() and (cut.targets == targets[cut.positions]).all()
    deeper = make_long_tailed(source, profile, imbalance * 2, 20, seed=seed)
    assert set(deeper.positions) <= set(cut.positions)


# -- samplers ----------------------------------------------------------------------------------------------------------


@FEW
@given(
    targets=labels,
    name=st.sampled_from(sorted(SAMPLERS)),
    world=st.integers(1, 4),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 5),
    drs=st.sampled_from([1.0, 0.5]),
    repeats=st.integers(1, 3),
)
def test_every_sampler_is_a_function_of_seed_epoch_and_rank(targets, name, world, seed, epoch, drs, repeats) -> None:
    config = DataConfig(sampler=name, drs_start=drs, repeats=repeats)

    def ranks():
        made = [build_sampler(config, targets, 5, seed=seed, epochs=6, rank=r, world=world) for r in range(world)]
        made[0].indices(5 - epoch)  # what was asked before makes no difference
        return made

    samplers, again = ranks(), ranks()
    parts = [sampler.indices(epoch) for sampler in samplers]
    assert all((part == other.indices(epoch)).all() for part, other in zip(parts, again, strict=True))
    alone = build_sampler(config, targets, 5, seed=seed, epochs=6)
    order = alone.indices(epoch)
    assert {len(part) for part in parts} == {len(samplers[0])} == {-(-len(order) // world)}
    # place i of rank r is place i * world + r of the whole
    dealt = np.stack(parts, axis=1).reshape(-1)
    assert (dealt[: len(order)] == order).all()
    assert (dealt[len(order) :] == np.resize(order, len(dealt))[len(order) :]).all()
    assert order.min() >= 0 and order.max() < len(targets)
    if name != "repeat-factor":
        assert len(order) == len(targets)


@FEW
@given(labels, st.integers(0, 9), st.integers(1, 4))
def test_instance_ranks_are_disjoint_and_cover_everything(targets, seed, world) -> None:
    parts = [
        build_sampler(DataConfig(), targets, 5, seed=seed, rank=r, world=world).indices(0).tolist()
        for r in range(world)
    ]
    together = [i for part in parts for i in part]
    assert set(together) == set(range(len(targets)))
    padding = len(parts[0]) * world - len(targets)
    assert len(together) - len(set(together)) == padding < world


@FEW
@given(labels, st.integers(0, 9))
def test_repeat_factor_shows_everything_and_rare_classes_more(targets, seed) -> None:
    sampler = build_sampler(DataConfig(sampler="repeat-factor"), targets, 5, seed=seed)
    times = np.bincount(sampler.indices(0), minlength=len(targets))
    expected = sampler.repeats[np.asarray(targets)]
    assert (times >= np.floor(expected) - 1).all() and (times <= np.ceil(expected) + 1).all()
    assert times.sum() == len(sampler) and (times == 0).sum() <= 1  # rounding may cut the very last


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=5).filter(any),
    name=st.sampled_from(["class-balanced", "square-root", "effective-number", "progressive"]),
)
def test_weighted_samplers_draw_classes_as_often_as_they_promise(counts, name) -> None:
    targets = np.repeat(np.arange(len(counts)), counts)
    sampler = build_sampler(DataConfig(sampler=name), targets, len(counts), seed=1, epochs=2)
    epoch, rounds = 0, 60
    promised = sampler.class_probabilities(epoch)
    draws = np.zeros(len(counts))
    for seed in range(rounds):
        fresh = build_sampler(DataConfig(sampler=name), targets, len(counts), seed=seed, epochs=2)
        classes = targets[fresh.indices(epoch)]
        draws += np.bincount(classes, minlength=len(counts))
        for k in np.unique(classes):  # the images of a class are used equally often, give or take one
            used = np.bincount(fresh.indices(epoch)[classes == k], minlength=len(targets))[targets == k]
            assert used.max() - used.min() <= 1
    total = rounds * len(targets)
    assert draws.sum() == total and not draws[np.array(counts) == 0].any()
    error = np.abs(draws / total - promised)
    assert (error <= 5.5 * np.sqrt(promised * (1 - promised) / total) + 1e-9).all()


# -- quarantine --------------------------------------------------------------------------------------------------------


@FEW
@given(labels, st.data(), st.floats(0, 0.6), st.integers(0, 9))
def test_a_quarantine_takes_out_and_never_puts_in(targets, data, fraction, seed) -> None:
    files = [f"{i}.jpg" for i in range(len(targets))]
    bad = frozenset(data.draw(st.sets(st.sampled_from(files))))
    source = _Torn(files, targets, NAMES)
    train, held = stratified_holdout(source, fraction, seed)
    splits = {"train": train, "val": held} if len(held) else {"train": train}
    for part in splits.values():
        part.bad = bad
    config = DataConfig(bad_limit=1.0, workers=2)
    gone = any(set(np.array(s.paths)[s.targets == k]) <= bad for s in splits.values() for k in np.unique(s.targets))
    if gone:
        with pytest.raises(DataError, match="would lose all its images"):
            set_aside(splits, config)
        return
    kept, quarantine = set_aside(splits, config)
    for name, part in splits.items():
        assert kept[name].paths == tuple(p for p in part.paths if p not in bad)
        assert kept[name].positions.tolist() == [i for i in part.positions.tolist() if files[i] not in bad]
        listed = quarantine.splits.get(name, ())
        assert [entry.path for entry in listed] == [p for p in part.paths if p in bad]
    assert quarantine.images == len(bad) == sum(quarantine.per_class.values())


@FEW
@given(st.integers(10, 60), st.data(), st.floats(0, 1))
def test_the_bound_is_the_share_of_the_split(images, data, limit) -> None:
    bad = data.draw(st.integers(1, images - 1))
    source = _Torn([str(i) for i in range(images)], [0] * images, ["a"])
    source.bad = frozenset(map(str, range(bad)))
    config = replace(DataConfig(), bad_limit=limit)
    if bad > limit * images:
        with pytest.raises(DataError, match=f"{bad} of {images} images of split 'train' cannot be read"):
            set_aside({"train": source}, config)
    else:
        assert set_aside({"train": source}, config)[1].images == bad
