"""Bad images are set aside after everything is chosen, within bounds, the same on all processes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as processes
from PIL import Image

from relatum.config import DataConfig
from relatum.data import DatasetSource, build_loaders, from_arrays, loaders_from_splits, open_splits
from relatum.data.decode import ImageError
from relatum.data.quarantine import BadImage, Quarantine, set_aside
from relatum.errors import DataError


def plant(root: Path, counts: dict[str, int]) -> Path:
    random = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / name / f"{i:03d}.png")
    return root


def spoil(root: Path, *names: str) -> None:
    for name in names:
        (root / name).write_bytes(b"spoilt")


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    root = plant(tmp_path / "photos", {"ant": 40, "bee": 20, "cow": 4})
    return DataConfig(
        root=str(root), image_size=16, batch_size=8, normalise="half", workers=2, bad_images="quarantine", bad_limit=0.2
    )


def paths(loaders) -> dict[str, list[str]]:
    evals = {split: loader.source.paths for split, loader in loaders.evals.items()}
    return {split: list(found) for split, found in {"train": loaders.train.source.paths, **evals}.items()}


@pytest.mark.parametrize("cut", [{}, {"long_tail": "exponential", "imbalance": 10.0}])
def test_all_other_images_stay_where_they_were(config: DataConfig, cut: dict) -> None:
    config = replace(config, **cut)
    before = {split: list(source.paths) for split, source in open_splits(config).items()}
    root = Path(config.root)
    chosen = [before["train"][0], before["train"][5], before["val"][1]]
    spoil(root, *(str(Path(path).relative_to(root)) for path in chosen))
    assert build_loaders(replace(config, bad_images="quarantine")).quarantine.images == 3
    loaders = build_loaders(config)
    assert paths(loaders) == {s: [p for p in found if p not in chosen] for s, found in before.items()}
    listed = {split: [bad.path for bad in found] for split, found in loaders.quarantine.splits.items()}
    assert listed == {"train": chosen[:2], "val": chosen[2:]}
    assert loaders.prior.counts.sum() == len(before["train"]) - 2


def test_memory_and_workers_see_the_same_images(config: DataConfig) -> None:
    spoil(Path(config.root), "ant/003.png", "bee/007.png")
    steps = []
    for memory in ("always", "never"):
        loaders = build_loaders(replace(config, memory=memory))
        steps.append([batch.index.tolist() for batch in loaders.train.epoch(1)])
    assert steps[0] == steps[1] and steps[0]


def test_progress_counts_every_image_once(config: DataConfig) -> None:
    splits, calls = open_splits(config), []
    set_aside(splits, config, lambda done, total: calls.append((done, total)))
    total = sum(map(len, splits.values()))
    assert calls[-1] == (total, total) and all(done <= total for done, _ in calls)


def test_bounds_of_split_and_class_and_a_class_that_would_vanish(config: DataConfig) -> None:
    root = Path(config.root)
    config = replace(config, val_fraction=0.0)
    spoil(root, *(f"bee/{i:03d}.png" for i in range(5)))
    with pytest.raises(
        DataError, match=r"5 of 20 images of class 'bee' of split 'train' cannot be read \(25\.0%\)"
    ) as stop:
        build_loaders(config)
    assert "000.png: not an image in a known format" in str(stop.value) and "and 2 more" in str(stop.value)
    assert build_loaders(replace(config, bad_limit=0.25)).quarantine.per_class == {"bee": 5}
    with pytest.raises(DataError, match=r"5 of 64 images of split 'train' cannot be read \(7\.8%\).*bee 5"):
        build_loaders(replace(config, bad_limit=0.05))
    spoil(root, "cow/000.png", "cow/001.png", "cow/002.png")  # three of four, but a small class has no bound
    assert build_loaders(replace(config, bad_limit=0.25)).prior.counts.tolist() == [40, 15, 1]
    spoil(root, "cow/003.png")
    with pytest.raises(DataError, match=r"class 'cow' of split 'train' would lose all its images \(4\)"):
        build_loaders(replace(config, bad_limit=1.0))


def test_raise_is_the_default_and_sets_nothing_aside(config: DataConfig) -> None:
    plain = replace(config, bad_images="raise")
    assert build_loaders(plain).quarantine == Quarantine()
    spoil(Path(config.root), "ant/003.png")
    with pytest.raises(DataError, match=r"003\.png"):
        build_loaders(plain)


class _Pictures:
    targets = (0, 1) * 15

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int):
        if index == 4:
            raise RuntimeError("tape torn")
        return np.full((16, 16, 3), index, np.uint8), self.targets[index] if index != self.wrong else 1

    wrong = -1


def test_datasets_of_the_users_own(config: DataConfig) -> None:
    source = DatasetSource(_Pictures(), class_names=["a", "b"])
    loaders = loaders_from_splits({"train": source}, config)
    assert loaders.quarantine.splits["train"] == (BadImage("item 4 of _Pictures", "a", "tape torn"),)
    assert 4 not in loaders.train.source.positions and len(loaders.train.source) == 29
    mislabelled = _Pictures()
    mislabelled.wrong = 6
    with pytest.raises(DataError, match="item 6 of _Pictures has label 1"):  # a wrong label is no bad image
        loaders_from_splits({"train": DatasetSource(mislabelled, class_names=["a", "b"])}, config)
    arrays = from_arrays(np.zeros((9, 16, 16, 3), np.uint8), np.arange(9) % 2)
    assert loaders_from_splits({"train": arrays}, config).quarantine.images == 0


def test_trouble_of_the_machine_is_not_the_images(config: DataConfig, monkeypatch) -> None:
    import errno
    import os

    real = os.open

    def full(path, *args, **kwargs):
        if str(path).endswith("003.png"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="Too many open files"):
        build_loaders(config)


def test_written_read_compared_and_said() -> None:
    one = BadImage("a\x1b.jpg", "cat", "empty file (0 bytes)")
    two = BadImage("b.jpg", "dog", "truncated")
    found = Quarantine({"train": (one, two), "val": (one,)})
    assert Quarantine.from_dict(found.to_dict()) == found
    assert (found.images, found.per_class) == (3, {"cat": 2, "dog": 1})
    assert found.sentence().startswith(
        "3 images cannot be read and are set aside: train 2 (cat 1, dog 1); val 1 (cat 1)."
    )
    assert Quarantine().sentence() == ""
    assert found.differences(found) == []
    assert Quarantine({"train": (two,)}).differences(Quarantine({"train": (one,)})) == [
        "now also b.jpg (train)",
        "no longer a\\x1b.jpg (train)",
    ]
    error = pickle.loads(pickle.dumps(ImageError("cannot read x: cut", "cut")))  # as it comes from a loader process
    assert (str(error), error.reason) == ("cannot read x: cut", "cut")


def _one_of_two(rank: int, config: DataConfig, place: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    seen: list[int] = []
    loaders = build_loaders(config, rank=rank, world=2, progress=lambda done, _: seen.append(done))
    answer = (loaders.quarantine.to_dict(), paths(loaders), max(seen))
    try:
        build_loaders(replace(config, bad_limit=0.01), rank=rank, world=2)
        refusal = ""
    except DataError as error:
        refusal = str(error)
    Path(f"{place}/answer-{rank}").write_bytes(pickle.dumps((answer, refusal)))
    torch.distributed.destroy_process_group()


def test_two_processes_look_at_half_each_and_agree(config: DataConfig, tmp_path: Path) -> None:
    root = Path(config.root)
    spoil(root, "ant/003.png", "bee/007.png", "cow/001.png")
    config = replace(config, memory="never")
    processes.spawn(_one_of_two, (config, str(tmp_path)), nprocs=2)
    answers = [pickle.loads((tmp_path / f"answer-{rank}").read_bytes()) for rank in (0, 1)]
    (first, refusal), (second, other) = answers
    alone = build_loaders(config)
    assert first[:2] == second[:2] == (alone.quarantine.to_dict(), paths(alone))
    assert first[2] + second[2] == 64  # each image was looked at by one of them
    assert refusal == other and "more than data.bad_limit (1.0%)" in refusal
