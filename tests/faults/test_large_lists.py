"""Lists of a hundred thousand images: the same order, batches and randomness as ever, without a copy of everything."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import numpy as np
import pytest
import torch

from relatum.config import DataConfig
from relatum.data.augment.pipeline import build_augment
from relatum.data.loaders import build_loaders, loaders_from_splits
from relatum.data.samplers import SAMPLERS
from relatum.data.source import ImageSource
from relatum.data.splits import open_splits
from relatum.data.workers import Key, KeyBatches, TrainItems
from relatum.errors import ConfigError

ENTRIES, CLASSES = 100_000, 1_000
BYTES_PER_ENTRY = 90  # what preparing an epoch may take: eleven numbers for each sample


class Computed(ImageSource):
    """Images (16, 16, 3) that are functions of their index: nothing to store, whatever the number."""

    def load(self, index):
        return np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)

    def _take(self, indices):
        return Computed(self.targets[indices], self.class_names, self.name)


def long_tailed_targets():
    share = 1 / np.arange(1, CLASSES + 1)
    targets = np.repeat(np.arange(CLASSES), 1 + (ENTRIES * share / share.sum()).astype(int))[-ENTRIES:]
    return np.random.default_rng(0).permutation(targets)


def train_loader(rank=0, world=1, **data):
    source = Computed(long_tailed_targets(), [f"c{k}" for k in range(CLASSES)])
    config = DataConfig(**{"image_size": 16, "memory": "never", "workers": 0, "batch_size": 48, **data})
    return loaders_from_splits({"train": source}, config, seed=3, epochs=5, rank=rank, world=world).train


def eager_keys(train, epoch):
    """All keys of an epoch at once, counted one by one: slow, large and simple."""
    seen, keys = {}, []
    for sample in train.sampler.indices(epoch).tolist():
        keys.append(Key(sample, seen.get(sample, 0)))
        seen[sample] = seen.get(sample, 0) + 1
    size = train.batch_size
    return [keys[p * size : (p + 1) * size] for p in range(len(train))]


def peak_bytes(call):
    """Return what `call` returns, and the most memory that was allocated meanwhile."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SETTINGS = [{"sampler": name} for name in SAMPLERS] + [{"drs_start": 0.2}, {"repeats": 4}]


@pytest.mark.parametrize("data", SETTINGS, ids=lambda data: "-".join(map(str, data.values())))
def test_keys_made_on_demand_are_those_made_at_once(data):
    train = train_loader(rank=1, world=3, **data)
    expected = eager_keys(train, 2)
    assert list(train.keys(2)) == expected
    assert len(train.keys(2)) == len(expected) == len(train) > 600
    repeated = sum(key.repetition > 0 for keys in expected for key in keys)
    assert (repeated > 0) == (data != {"sampler": "instance"})  # repetitions are there to be counted


def test_an_epoch_goes_on_in_the_middle_with_the_keys_of_the_uninterrupted_one():
    train = train_loader(sampler="class-balanced")
    middle = len(train) // 2
    uninterrupted = list(train.keys(3))
    assert list(train_loader(sampler="class-balanced").keys(3, middle)) == uninterrupted[middle:]
    assert uninterrupted[middle] != uninterrupted[0]
    assert list(train.keys(3, len(train))) == []
    with pytest.raises(ConfigError, match="batches are 0 to"):
        train.keys(3, len(train) + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_resumed_epoch_are_the_images_of_their_keys(workers):
    train = train_loader(sampler="square-root", workers=workers, augment="randaugment")
    start = len(train) - 3
    items = TrainItems(train.source, build_augment(DataConfig(image_size=16, augment="randaugment")), 3, 4, 0)
    batches = list(train.epoch(4, start))
    expected = eager_keys(train, 4)[start:]
    assert len(batches) == len(expected) == 3
    for batch, keys in zip(batches, expected, strict=True):
        assert batch.index.tolist() == [key.sample for key in keys]
        images, targets, _ = zip(*(items[key] for key in keys), strict=True)
        assert torch.equal(batch.inputs, torch.stack(images)) and batch.targets.tolist() == list(targets)


@pytest.mark.parametrize("sampler", ["instance", "progressive", "repeat-factor"])
def test_an_epoch_is_prepared_without_a_copy_of_all_its_keys(sampler):
    train = train_loader(sampler=sampler)
    bound = BYTES_PER_ENTRY * ENTRIES
    _, all_at_once = peak_bytes(lambda: eager_keys(train, 0))
    assert all_at_once > 1.5 * bound  # the bound tells the two ways apart
    first, needed = peak_bytes(lambda: next(iter(train.keys(0))))
    assert len(first) == train.batch_size and needed < bound
    number, needed = peak_bytes(lambda: sum(len(keys) for keys in train.keys(0)))
    assert number == len(train) * train.batch_size and needed < bound


def test_the_last_batch_of_an_evaluation_may_be_smaller():
    keys = KeyBatches(np.arange(7, ENTRIES), 256, range(-(-(ENTRIES - 7) // 256)))
    batches = list(keys)
    assert [key for batch in batches for key in batch] == [Key(k) for k in range(7, ENTRIES)]
    assert len(keys) == len(batches) and len(batches[-1]) == (ENTRIES - 7) % 256 > 0


def test_a_long_list_is_divided_without_loss_and_its_order_is_the_same_every_time(tmp_path):
    targets = long_tailed_targets()
    lines = [f"train/{k:04d}/{i:08d}.jpg {k}" for i, k in enumerate(targets.tolist())]
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    config = DataConfig(kind="list", train_list=str(tmp_path / "list.txt"), memory="never", val_fraction=0.1)
    splits = open_splits(config)
    both = np.concatenate([splits["train"].positions, splits["val"].positions])
    assert np.array_equal(np.sort(both), np.arange(ENTRIES)) and len(splits["val"]) > 5_000
    for i in (0, 12_345, len(splits["train"]) - 1):
        place = int(splits["train"].positions[i])
        assert splits["train"].describe(i) == str(tmp_path / lines[place].split()[0])
        assert splits["train"].targets[i] == targets[place]
    first, again = (list(islice(build_loaders(config, seed=1).train.keys(1, 200), 5)) for _ in range(2))
    assert first == again and len({key.sample for keys in first for key in keys}) == 5 * config.batch_size
