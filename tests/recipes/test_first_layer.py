"""A model that wants to see training images gets them; sizes it cannot take are refused before training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.errors import RelatumError
from relatum.models.whitening import whitening_filters
from relatum.recipes.classification import build

CONFIG = RunConfig(
    data=DataConfig(kind="shapes", image_size=16, batch_size=8, long_tail="exponential", largest=20, workers=0),
    model=ModelConfig(name="fastnet-s"),
    train=TrainConfig(epochs=2),
)


def test_the_stem_whitens_the_training_images_for_every_seed_alike():
    task, loaders = build(CONFIG)
    source = loaders.train.source
    images = torch.stack([loaders.preprocess(source.load(index)) for index in range(len(source))])
    torch.testing.assert_close(task.model.stem.weight[:12], whitening_filters(images, 2), rtol=1e-3, atol=1e-4)
    other, _ = build(replace(CONFIG, train=replace(CONFIG.train, seed=7)))
    assert torch.equal(other.model.stem.weight, task.model.stem.weight)
    assert not torch.equal(other.model.fc.weight, task.model.fc.weight)


def test_the_frozen_stem_is_not_given_to_the_optimizer():
    task, _ = build(CONFIG)
    trained = {id(p) for group in task.param_groups(CONFIG.train) for p in group["params"]}
    assert trained.isdisjoint(map(id, task.model.stem.parameters())) and id(task.model.fc.weight) in trained


def test_weights_from_a_file_are_not_overwritten(tmp_path):
    state = {name: value.contiguous() for name, value in build(CONFIG)[0].model.state_dict().items()}
    state["stem.weight"] += 0.5
    save_file(state, tmp_path / "w.safetensors")
    again, _ = build(replace(CONFIG, model=replace(CONFIG.model, weights=str(tmp_path / "w.safetensors"))))
    assert torch.equal(again.model.stem.weight, state["stem.weight"])


@pytest.mark.parametrize("name", ["vit-pico-p8", "fastnet-s"])
def test_sizes_that_the_model_cannot_take_are_refused(name):
    sizes = (8, 16)
    config = replace(CONFIG, data=replace(CONFIG.data, sizes=sizes), model=ModelConfig(name=name))
    with pytest.raises(RelatumError, match=r"8 (x 8|pixels)"):
        build(config)


def test_a_convolutional_model_takes_them_and_stays_as_it_was():
    task, _ = build(replace(CONFIG, data=replace(CONFIG.data, sizes=(12, 16))))
    assert task.model.training
    assert all(int(b) == 0 for n, b in task.model.named_buffers() if n.endswith("num_batches_tracked"))
