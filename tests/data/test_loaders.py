"""Loaders: coverage, resuming in the middle of an epoch, memory against worker processes, errors."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from relatum.config import DataConfig
from relatum.data.loaders import eval_part, loaders_from_splits
from relatum.data.memory import decode_all, lives_in_memory
from relatum.data.seeding import generator_for
from relatum.data.source import ArraySource, FileSource
from relatum.data.workers import count_repetitions
from relatum.errors import ConfigError, DataError


def arrays(n=23, side=16, classes=3, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return ArraySource(images, np.arange(n) % classes, [f"c{k}" for k in range(classes)])


def config(**more):
    return DataConfig(**{"image_size": 16, "batch_size": 6, "eval_batch_size": 4, "workers": 0, **more})


def files(folder, n=9, size=(24, 20)):
    random = np.random.default_rng(1)
    paths = []
    for i in range(n):
        paths.append(folder / f"{i}.png")
        Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(paths[-1])
    return FileSource(paths, np.arange(n) % 2, ["a", "b"])


def assert_same_batches(first, second):
    first, second = list(first), list(second)
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) and torch.equal(a.index, b.index)


PATHS = [{"memory": "always"}, {"memory": "never"}, {"memory": "never", "workers": 2}]


@pytest.mark.parametrize("more", PATHS)
def test_an_epoch_from_the_middle_is_the_rest_of_the_epoch(more):
    settings = config(augment="autoaugment", cutout=8, mixup=0.5, cutmix=0.5, sampler="class-balanced", **more)
    train = loaders_from_splits({"train": arrays()}, settings, seed=5, epochs=3).train
    full = list(train.epoch(1))
    assert len(full) == len(train) == 3
    other = next(train.epoch(2))
    assert not torch.equal(full[0].inputs, other.inputs)
    again = loaders_from_splits({"train": arrays()}, settings, seed=5, epochs=3).train
    for start in (0, 1, 2):
        assert_same_batches(again.epoch(1, start), full[start:])
    assert list(train.epoch(1, 3)) == []


def test_batches_that_are_augmented_together_are_their_own_and_resume_in_between():
    settings = config(augment="autoaugment", cutout=4, image_size=8, batch_size=200, memory="always")
    train = loaders_from_splits({"train": arrays(1000, side=8)}, settings, seed=5).train
    full = list(train.epoch(1))
    assert len(full) == 5  # of 200 images: two, two and one at a time
    for position, batch in enumerate(full):
        alone = train.augment(train.images[batch.index], generator_for("batch", 5, 1, position, 0))
        assert torch.equal(batch.inputs, alone)
        assert torch.equal(batch.index, torch.from_numpy(train.sampler.indices(1)[200 * position :][:200]))
        assert_same_batches(train.epoch(1, position), full[position:])


def test_batches_do_not_depend_on_the_number_of_workers():
    batches = [
        list(loaders_from_splits({"train": arrays()}, config(memory="never", workers=w), seed=1).train.epoch(0))
        for w in (0, 1, 2)
    ]
    assert_same_batches(batches[0], batches[1])
    assert_same_batches(batches[0], batches[2])


@pytest.mark.parametrize("more", PATHS)
def test_loading_leaves_global_random_state_alone(more):
    loaders = loaders_from_splits({"train": arrays(), "val": arrays()}, config(mixup=1.0, **more))
    torch.manual_seed(3)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert len(list(loaders.train.epoch(0))) + len(list(loaders.evals["val"])) == 3 + 6
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("more", PATHS[:2])
def test_train_batches_carry_the_right_images(more):
    source = arrays()
    train = loaders_from_splits({"train": source}, config(augment="none", normalise="half", **more)).train
    seen = []
    for batch in train.epoch(0):
        seen += batch.index.tolist()
        assert torch.equal(batch.targets, torch.from_numpy(source.targets)[batch.index])
        want = torch.from_numpy(source.images)[batch.index].permute(0, 3, 1, 2) / 127.5 - 1
        torch.testing.assert_close(batch.inputs, want, rtol=0, atol=1e-6)
    assert len(seen) == 18 and len(set(seen)) == 18
    assert len(set(seen) | {i for b in train.epoch(1) for i in b.index.tolist()}) > 18


@pytest.mark.parametrize("more", PATHS)
def test_evaluation_covers_each_sample_once_in_order(more):
    source = arrays(11)
    loaders = loaders_from_splits({"train": arrays(), "val": source}, config(augment="autoaugment", **more))
    val = loaders.evals["val"]
    batches = list(val)
    assert [len(b) for b in batches] == [4, 4, 3] and len(val) == 3
    assert torch.cat([b.index for b in batches]).tolist() == list(range(11))
    want = torch.stack([loaders.preprocess(source.load(i)) for i in range(11)])
    assert torch.equal(torch.cat([b.inputs for b in batches]), want)
    assert torch.equal(torch.cat([b.targets for b in batches]), torch.from_numpy(source.targets))
    assert_same_batches(val, batches)


def test_evaluation_of_files_is_the_same_from_memory_and_from_disk(tmp_path):
    source = files(tmp_path)
    both = [
        loaders_from_splits({"train": source, "test": source}, config(memory=memory, resize=18))
        for memory in ("always", "never")
    ]
    assert_same_batches(both[0].evals["test"], both[1].evals["test"])


@pytest.mark.parametrize("world", [1, 2, 3, 30])
@pytest.mark.parametrize("memory", ["always", "never"])
def test_ranks_evaluate_disjoint_parts_that_cover_all(world, memory):
    source, seen, parts = arrays(11), [], []
    for rank in range(world):
        loaders = loaders_from_splits({"train": arrays(), "val": source}, config(memory=memory), rank=rank, world=world)
        part = [(i, x) for b in loaders.evals["val"] for i, x in zip(b.index.tolist(), b.inputs, strict=True)]
        seen += [i for i, _ in part]
        parts.append(len(part))
        for i, pixels in part:
            assert torch.equal(pixels, loaders.preprocess(source.load(i)))
    assert seen == list(range(11))
    assert max(parts) - min(parts) <= 1
    assert [len(eval_part(11, r, world)) for r in range(world)] == parts


def test_ranks_train_on_different_samples_and_augment_differently():
    source = ArraySource(np.repeat(arrays(1).images, 24, 0), [0, 1] * 12)
    ranks = [loaders_from_splits({"train": source}, config(), rank=r, world=2).train for r in range(2)]
    assert not torch.equal(next(ranks[0].epoch(0)).inputs, next(ranks[1].epoch(0)).inputs)
    index = [{i for b in train.epoch(0) for i in b.index.tolist()} for train in ranks]
    assert [len(train) for train in ranks] == [2, 2]
    assert not index[0] & index[1]


def test_repeated_samples_are_augmented_anew_on_the_worker_path():
    source = ArraySource(np.full((8, 16, 16, 3), 255, np.uint8), [0] * 7 + [1])
    train = loaders_from_splits({"train": source}, config(memory="never", sampler="class-balanced", batch_size=8)).train
    batch = next(b for e in range(9) for b in train.epoch(e) if Counter(b.index.tolist())[7] >= 4)
    copies = batch.inputs[batch.index == 7]
    assert len({tuple(x.flatten().tolist()) for x in copies}) > 1


def test_count_repetitions():
    assert count_repetitions(np.array([4, 2, 4, 4, 2, 0])).tolist() == [0, 0, 1, 2, 1, 0]


def test_fewer_samples_than_a_batch_are_one_batch():
    train = loaders_from_splits({"train": arrays(5)}, config(batch_size=64)).train
    batches = list(train.epoch(0))
    assert len(train) == len(batches) == 1 and sorted(batches[0].index.tolist()) == list(range(5))


def test_prior_counts_and_soft_targets_have_all_classes():
    source = ArraySource(arrays(9).images, np.zeros(9, int), ["a", "b", "absent"])
    loaders = loaders_from_splits({"train": source}, config(cutmix=1.0))
    assert loaders.prior.counts.tolist() == [9, 0, 0] and loaders.prior.names == ("a", "b", "absent")
    assert next(loaders.train.epoch(0)).targets.shape == (6, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(tmp_path, workers):
    source = files(tmp_path)
    (tmp_path / "4.png").write_bytes(b"not an image")
    for memory in ("always", "never"):
        with pytest.raises(DataError, match=r"4\.png") as caught:
            loaders = loaders_from_splits({"train": source}, config(memory=memory, batch_size=9, workers=workers))
            list(loaders.train.epoch(0))
        assert "Traceback" not in str(caught.value)


def test_splits_that_cannot_be_used_are_refused():
    with pytest.raises(DataError, match="at least two"):
        loaders_from_splits({"train": arrays(1)}, config())
    with pytest.raises(DataError, match="'val' has no samples"):
        loaders_from_splits({"train": arrays(), "val": arrays().subset([])}, config())
    with pytest.raises(DataError, match="no split 'train'"):
        loaders_from_splits({"val": arrays()}, config())
    with pytest.raises(DataError, match="other class names"):
        loaders_from_splits({"train": arrays(), "val": arrays(classes=2)}, config())
    train = loaders_from_splits({"train": arrays()}, config()).train
    for wrong in ((-1, 0), (0, -1), (0, 4)):
        with pytest.raises(ConfigError):
            list(train.epoch(*wrong))


def test_what_lives_in_memory(tmp_path):
    small, large = arrays(), arrays(side=20)
    assert lives_in_memory(small, config(), 23)
    assert not lives_in_memory(small, config(memory="never"), 23)
    assert not lives_in_memory(small, config(), 3_000_000)
    assert not lives_in_memory(small, config(image_size=128), 23)
    assert lives_in_memory(small, config(image_size=128, memory="always"), 23)
    assert lives_in_memory(large, config(), 23)
    assert lives_in_memory(small, config(), 23, full_resolution=True)
    assert not lives_in_memory(large, config(), 23, full_resolution=True)
    assert not lives_in_memory(files(tmp_path), config(), 9, full_resolution=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_decoding_reports_progress_and_keeps_the_order(tmp_path, threads):
    source, calls = files(tmp_path, n=70), []
    images = decode_all(source, 16, 16, threads, lambda done, total: calls.append((done, total)))
    assert calls == [(64, 70), (70, 70)]
    loaders = loaders_from_splits({"train": source}, config())
    assert torch.equal(images[69], loaders.preprocess.fit(source.load(69)))
