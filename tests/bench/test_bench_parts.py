"""The images, the subjects, the usual way, and the start of a fresh process."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from relatum.bench.costs import beside_steps, seconds_to_first_step
from relatum.bench.images import needs_images, with_images, write_images
from relatum.bench.speed import each_setting, loop_speed, loop_speeds, precisions, thread_counts, three_ways
from relatum.bench.subjects import DEFAULTS, Subject, endless, subjects_of
from relatum.bench.usual import UsualWay, usual_transform
from relatum.config import Augmentation, DataConfig, RunConfig
from relatum.data.cifar import read_cifar
from relatum.errors import ConfigError, TrainingError
from relatum.recipes.catalog import find_recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, train=300, test=100)
    return folder


@pytest.fixture(scope="module")
def subject(folder) -> Subject:
    """A small first stage: the cheapest of all steps."""
    config = with_images(find_recipe("livt/cifar100-lt-100").config(), folder)
    train = replace(config.train, threads=1, precision="float32")
    first = replace(config.pretrain, batch_size=8, epochs=3, eval_every=1, warmup_epochs=0.0, neighbours=0)
    model = replace(config.model, name="vit-pico-p8")
    return Subject("livt/cifar100-lt-100", replace(config, model=model, pretrain=first, train=train), "pretrain")


def test_generated_images_have_a_long_tail_over_all_classes(folder):
    splits = read_cifar(folder, "cifar100")
    counts = np.bincount(splits["train"].targets, minlength=100)
    assert counts.min() >= 1 and counts[0] > 5 * counts[-1]
    assert len(splits["test"]) == 100
    assert splits["train"].load(0).std() > 30


def test_generated_images_take_the_place_of_data_that_was_not_named(folder):
    config = find_recipe("cifar100-lt-100").config()
    assert needs_images(config.data) and needs_images(RunConfig().data)
    assert not any(map(needs_images, (DataConfig(root="x"), DataConfig(train_list="x"), DataConfig(kind="shapes"))))
    ready = with_images(config, folder)
    assert not needs_images(ready.data)
    assert (ready.data.augment, ready.data.long_tail) == ("autoaugment", "none")


@pytest.mark.parametrize("place", ["data", "pretrain"])
def test_other_sizes_need_real_images(folder, place):
    config = RunConfig()
    config = replace(config, **{place: replace(getattr(config, place), image_size=64)})
    with pytest.raises(ConfigError, match="generated images have 32 pixels a side, and this recipe wants 64"):
        with_images(config, folder)


def test_a_recipe_gives_its_stages():
    two = find_recipe("livt/cifar100-lt-100").config()
    assert [s.name for s in subjects_of("r", two)] == ["vit-nano-p4, mae", "vit-nano-p4"]
    assert [s.stage for s in subjects_of("r", replace(two, stages=("finetune",)))] == ["finetune"]
    assert [s.stage for s in subjects_of("r", replace(two, stages=("pretrain",)))] == ["pretrain"]
    assert subjects_of("r", two)[1].config.pretrain.method == "none", "there is no encoder to start from"
    one = find_recipe("cifar100-lt-100").config()
    assert [s.stage for s in subjects_of("r", one)] == ["finetune"]
    assert subjects_of("r", two)[0].train.optimizer == "adamw"
    assert all(stage in find_recipe(name).config().stages for name, stage in DEFAULTS.items())


@pytest.mark.parametrize("augment", get_args(Augmentation))
def test_the_usual_transforms_make_the_same_kind_of_image(augment):
    config = DataConfig(image_size=32, augment=augment, cutout=8, normalise="half")
    image = usual_transform(config)(Image.fromarray(np.full((40, 36, 3), 200, dtype=np.uint8)))
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
    assert image.min() >= -1 and image.max() <= 1
    assert (image == -1).all(0).any(), "the hole is black before normalisation"


def test_the_usual_way_trains_a_copy_in_float32_and_contiguous(subject):
    task, loaders = subject.build()
    task.to(memory_format=torch.channels_last)
    before = {name: p.detach().clone() for name, p in task.named_parameters()}
    usual = UsualWay(task, loaders, replace(subject.config.data, workers=1, batch_size=8), subject.train)
    decoded = []
    usual.task.model.decoder.norm.register_forward_hook(lambda _, inputs, output: decoded.append(output.shape[1]))
    assert usual.images_per_second(1) > 0
    assert set(decoded) == {16}, "all patches"
    assert all(p.is_contiguous() and p.dtype == torch.float32 for p in usual.task.parameters())
    assert all(torch.equal(p, before[name]) for name, p in task.named_parameters())
    assert any(not torch.equal(p, before[name]) for name, p in usual.task.named_parameters())


def test_three_ways_are_measured(subject):
    task, loaders = subject.build()
    found = three_ways(subject, task, loaders, 1, 1, lambda: None)
    assert {name: len(values) for name, values in found.items()} == {"loop": 1, "resident batch": 1, "usual way": 1}
    assert all(value > 0 for values in found.values() for value in values)


def test_each_setting_is_measured_and_everything_put_back(subject, monkeypatch):
    task, loaders = subject.build()
    loop = subject.trainer(task, loaders)
    used = []
    monkeypatch.setattr("relatum.bench.speed.thread_counts", lambda device: [1, 2])
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(loop, "_step", lambda group: used.append((loop.precision, torch.get_num_threads())))
    before = torch.get_num_threads()
    found = each_setting(loop, 1, 1, lambda: None)
    assert list(found) == [("float32", 1), ("float32", 2), ("bfloat16", 1), ("bfloat16", 2)]
    assert used == [setting for setting in found for _ in range(2)]  # one step is not counted
    assert (torch.get_num_threads(), loop.precision) == (before, "float32")


def test_what_the_processor_imitates_is_not_measured(monkeypatch):
    for native, expected in ((True, ["float32", "bfloat16"]), (False, ["float32"])):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        assert precisions(torch.device("cpu")) == expected


def test_the_speed_is_that_of_all_images_of_a_step(subject, monkeypatch):
    grouped = replace(subject, config=replace(subject.config, pretrain=replace(subject.config.pretrain, accumulate=3)))
    task, loaders = grouped.build()
    loop = grouped.trainer(task, loaders)
    sizes = []
    monkeypatch.setattr(loop, "_step", lambda group: sizes.append([len(batch) for batch in group]))
    monkeypatch.setattr("relatum.bench.speed.seconds_per_call", lambda call, calls: (call(), 0.5)[1])
    assert loop_speed(loop, endless(loaders), 1) == 48.0
    assert sizes == [[8, 8, 8], [8, 8, 8]]


def test_what_is_compared_takes_turns_within_a_round(subject, monkeypatch):
    """A machine that halves its speed for good in the middle of a round slows both alike."""
    task, loaders = subject.build()
    loop, order, clock = subject.trainer(task, loaders), [], [0.0]

    def step(group: list[str]) -> None:
        order.extend(group)
        clock[0] += (1.0 if len(order) <= 18 else 2.0) * (1.5 if group == ["real"] else 1.0)

    monkeypatch.setattr(loop, "_step", step)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    real, kept = loop_speeds(loop, [itertools.repeat("real"), itertools.repeat("kept")], 16)
    assert "".join(name[0] for name in order) == "rk" + "rrrrkkkk" + "kkkkrrrr" + "rrrrkkkk" + "kkkkrrrr"
    assert (real, kept) == (8 * 16 / 36, 8 * 16 / 24)
    order.clear()
    assert loop_speed(loop, itertools.repeat("real"), 5) == 8 / 1.5
    assert len(order) == 6, "one step is not counted"


def test_thread_counts_grow_to_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(6), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert thread_counts(torch.device("cpu")) == [1, 2, 4, 6]
    assert thread_counts(torch.device("cuda")) == [6]


def test_what_is_spent_beside_the_steps_is_counted_over_a_run(subject, tmp_path):
    task, loaders = subject.build()
    found = beside_steps(subject, task, loaders, tmp_path / "run", images_per_second=100.0, rounds=2)
    assert subject.train.save_every == 5
    assert (found.evaluations, found.checkpoints) == (2, 1)
    assert found.evaluation > 0 and found.last > 0 and found.checkpoint > 0
    assert found.training == 3 * len(loaders.train) * 8 / 100.0


def test_a_fresh_process_comes_to_its_first_step(subject, tmp_path):
    assert seconds_to_first_step(subject, tmp_path) > 0.1
    assert (tmp_path / "started" / "pretrain" / "checkpoints" / "step-000000001.safetensors").exists()


def test_a_process_that_fails_says_why(subject, tmp_path):
    lost = replace(subject.config, data=replace(subject.config.data, root=str(tmp_path / "nowhere")))
    with pytest.raises(TrainingError, match=r"did not get to its first step: relatum: error: .*nowhere"):
        seconds_to_first_step(replace(subject, config=lost), tmp_path)
