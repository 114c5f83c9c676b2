"""Settings of a recipe reach the objects they speak of, and nonsense is refused before anything is built."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.errors import ConfigError, DataError, ModelError
from relatum.models.heads import CosineClassifier
from relatum.objectives import LDAM, BalancedSoftmax, CrossEntropy
from relatum.objectives.deferred import DeferredReweighting
from relatum.recipes import classification
from relatum.recipes.classification import build, evaluate_run, run
from relatum.relation import Presence
from relatum.train import Display


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> str:
    """Three classes of 12, 8 and 4 images in folders."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, count in (("ant", 12), ("bee", 8), ("cow", 4)):
        (root / name).mkdir()
        for number in range(count):
            Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / name / f"{number}.png")
    return str(root)


@pytest.fixture
def config(photos) -> RunConfig:
    """A small recipe on those."""
    return RunConfig(
        data=DataConfig(root=photos, image_size=16, batch_size=8, val_fraction=0.25, workers=0, normalise="half"),
        model=ModelConfig(name="resnet20-cifar"),
        train=TrainConfig(epochs=2, precision="float32", device="cpu"),
    )


def _with(config: RunConfig, **rooms) -> RunConfig:
    return replace(config, **{room: replace(getattr(config, room), **values) for room, values in rooms.items()})


def _weights(config, tmp_path) -> str:
    task, _ = build(config)
    path = tmp_path / "weights.safetensors"
    save_file(task.model.state_dict(), path)
    return str(path)


# -- settings arrive ---------------------------------------------------------------------------------------------------


def test_a_plain_recipe_has_no_relation(config):
    task, loaders = build(config)
    assert task.relation is None
    assert type(task.objective) is CrossEntropy
    assert loaders.prior.names == ("ant", "bee", "cow")
    assert loaders.prior.counts.tolist() == [9, 6, 3]
    assert len(loaders.evals["val"].targets) == 6
    assert task.model.get_classifier().out_features == 3


def test_relation_settings_reach_the_relation(config):
    settings = {"name": "batchformer", "heads": 8, "layers": 2, "hidden": 24, "dropout": 0.25}
    task, _ = build(_with(config, relation={**settings, "streams": "released", "lr_scale": 0.5, "weight_decay": 0.01}))
    (attention,) = task.relation.module
    assert len(attention.layers) == 2
    for layer in attention.layers:
        assert layer.self_attn.num_heads == 8
        assert layer.linear1.out_features == 24
        assert layer.dropout.p == layer.dropout1.p == layer.dropout2.p == layer.self_attn.dropout == 0.25
    assert task.stream_weights == {"plain": 1.5, "related": 1.5}
    related = task.param_groups(config.train)[-1]
    assert (related["lr_scale"], related["weight_decay"]) == (0.5, 0.01)


def test_relation_defaults_are_those_of_the_paper(config):
    task, _ = build(_with(config, relation={"name": "batchformer"}))
    (attention,) = task.relation.module
    (layer,) = attention.layers
    assert (layer.self_attn.num_heads, layer.linear1.out_features, layer.dropout.p) == (4, 64, 0.5)
    assert task.stream_weights == {"plain": 0.5, "related": 0.5}
    assert task.param_groups(config.train)[-1]["weight_decay"] == config.train.weight_decay
    assert task.param_groups(config.train)[-1]["lr_scale"] == 0.1
    assert task.relation.spec.shared_classifier
    task, _ = build(_with(config, relation={"name": "batchformer", "shared_classifier": False}))
    assert task.relation.stream_names == ("related",)


def test_the_presence_of_the_relation_reaches_the_task(config):
    task, _ = build(_with(config, relation={"name": "batchformer", "fade_start": 0.25, "fade_end": 0.75}))
    assert task.presence == Presence(fade_start=0.25, fade_end=0.75)
    task, _ = build(_with(config, relation={"name": "none", "fade_start": 0.25, "fade_end": 0.75}))
    assert task.relation is None  # as with all settings of the relation: none is none


def test_objective_settings_reach_the_objective(config):
    task, loaders = build(_with(config, objective={"name": "balanced-softmax", "label_smoothing": 0.1}))
    assert isinstance(task.objective, BalancedSoftmax)
    assert (task.objective.label_smoothing, task.objective.num_classes) == (0.1, loaders.prior.num_classes)


def test_deferred_reweighting_switches_on_in_its_epoch(config):
    task, _ = build(_with(config, objective={"drw_start": 0.5, "beta": 0.99}))
    assert isinstance(task.objective, DeferredReweighting)
    task.set_epoch(0, 2)
    assert task.objective.class_weights is None
    task.set_epoch(1, 2)
    weights = task.objective.class_weights
    assert weights[0] < weights[1] < weights[2]


def test_the_sampler_is_the_one_asked_for(config):
    for name in ("instance", "class-balanced", "square-root", "repeat-factor"):
        _, loaders = build(_with(config, data={"sampler": name}))
        assert loaders.train.sampler.name == name
    _, loaders = build(_with(config, data={"drs_start": 0.5}))
    assert loaders.train.sampler.name == "deferred"
    assert loaders.train.sampler.epochs == config.train.epochs


def test_mixing_and_batch_size_reach_the_loader(config):
    _, loaders = build(_with(config, data={"mixup": 0.3, "batch_size": 6}))
    batch = next(loaders.train.epoch(0))
    assert batch.targets.shape == (6, 3)
    assert loaders.train.mixer.mixup_alpha == 0.3


def test_the_seed_decides_the_initial_weights_and_the_order(config):
    def first(seed):
        task, loaders = build(_with(config, train={"seed": seed}))
        return task.model.get_classifier().weight.detach(), next(loaders.train.epoch(0)).index

    (weights, order), (same, again), (others, other_order) = first(0), first(0), first(1)
    assert torch.equal(weights, same)
    assert torch.equal(order, again)
    assert not torch.equal(weights, others)
    assert not torch.equal(order, other_order)


def test_model_settings_reach_the_model(config):
    task, _ = build(_with(config, model={"head": "cosine", "scale": 9.0}))
    assert isinstance(task.model.get_classifier(), CosineClassifier)
    assert task.model.get_classifier().scale == 9.0
    task, _ = build(_with(config, model={"name": "test_vit", "drop_rate": 0.3}, data={"image_size": 32}))
    assert task.model.patch_embed.img_size == (32, 32)
    assert task.model.head_drop.p == 0.3


def test_a_frozen_backbone_trains_the_classifier_only(config, tmp_path):
    file = _weights(config, tmp_path)
    task, _ = build(_with(config, model={"freeze": "backbone", "weights": file}, relation={"name": "batchformer"}))
    trained = {name for name, parameter in task.model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"relation", task.relation.sites[0]}
    task.train()
    norms = [m for m in task.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms
    assert not any(norm.training for norm in norms)
    assert all(module.training for module in task.relation.module.modules())


# -- double correction -------------------------------------------------------------------------------------------------


def test_a_balanced_sampler_with_a_balanced_objective_is_warned_about(config):
    doubled = _with(config, data={"sampler": "class-balanced"}, objective={"name": "balanced-softmax"})
    with pytest.warns(UserWarning, match="double correction"):
        build(doubled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(_with(doubled, data={"allow_double": True}))
        build(_with(doubled, objective={"name": "cross-entropy"}))
        build(_with(doubled, data={"sampler": "instance"}))


def test_deferred_schedules_count_as_corrections(config):
    with pytest.warns(UserWarning, match="double correction"):
        build(_with(config, data={"drs_start": 0.5}, objective={"drw_start": 0.5}))


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rooms", "words"),
    [
        ({"relation": {"name": "batchformer"}, "data": {"batch_size": 1}}, "a relation needs other samples"),
        ({"relation": {"name": "batchformer", "fade_end": 0.5}}, "in that order"),
        ({"objective": {"name": "ldam"}}, "set --model.head cosine"),
        ({"objective": {"name": "ldam", "scale": 20.0}, "model": {"head": "cosine"}}, "must agree"),
        ({"train": {"warmup_epochs": 2.0}}, r"warmup_epochs is 2; it must be less than train.epochs, 2"),
        ({"model": {"freeze": "backbone"}}, "give a trained model with --model.weights"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused_before_the_data_is_read(config, monkeypatch, rooms, words):
    monkeypatch.setattr(classification, "build_loaders", lambda *a, **k: pytest.fail("the data was read"))
    with pytest.raises(ConfigError, match=words):
        build(_with(config, **rooms))


def test_the_same_settings_are_fine_with_what_was_missing(config):
    task, _ = build(_with(config, objective={"name": "ldam"}, model={"head": "cosine"}))
    assert isinstance(task.objective, LDAM)
    assert build(_with(config, train={"warmup_epochs": 1.5}))
    assert build(_with(config, data={"batch_size": 1}))


@pytest.mark.parametrize(
    ("rooms", "kind", "words"),
    [
        ({"relation": {"name": "batchformer", "heads": 3}}, ConfigError, "3 attention heads do not divide"),
        ({"objective": {"name": "balanced-softmax", "tau": 2.0}}, ConfigError, "tau = 1 by definition"),
        ({"objective": {"name": "class-balanced", "drw_start": 0.5}}, ConfigError, "already weighs the classes"),
        ({"model": {"name": "resnet20"}}, ModelError, "resnet20-cifar"),
        ({"data": {"root": "/nowhere/at/all"}}, DataError, "/nowhere/at/all"),
    ],
)
def test_other_mistakes_are_one_clear_error(config, rooms, kind, words):
    with pytest.raises(kind, match=words):
        build(_with(config, **rooms))


# -- running -----------------------------------------------------------------------------------------------------------


def test_values_out_of_range_are_refused_before_a_directory_is_made(config, tmp_path):
    with pytest.raises(ConfigError, match=r"recipe mine: 'train.lr' is -1.0"):
        run(_with(config, train={"lr": -1.0}), "mine", tmp_path / "run", Display(quiet=True))
    assert not (tmp_path / "run").exists()


def test_a_mistyped_folder_can_be_corrected_in_the_same_run_directory(config, tmp_path):
    with pytest.raises(DataError):
        run(_with(config, data={"root": "/nowhere"}), "mine", tmp_path, Display(quiet=True))
    done = run(_with(config, train={"max_steps": 1}), "mine", tmp_path, Display(quiet=True))
    assert done.status == "finished"
    assert done.scores.keys() == {"val"}


def test_data_of_other_classes_is_refused_at_evaluation(config, tmp_path):
    run(_with(config, train={"max_steps": 1}, evaluate={"bootstrap": 0}), "mine", tmp_path / "run", Display(quiet=True))
    for name in ("ant", "bee"):
        (tmp_path / "other" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (16, 16)).save(tmp_path / "other" / name / f"{number}.png")
    with pytest.raises(DataError, match="other classes than"):
        evaluate_run(tmp_path / "run", config.evaluate, str(tmp_path / "other"))
    assert evaluate_run(tmp_path / "run", config.evaluate).keys() == {"val"}


def test_mini_batch_inference_brings_the_trained_relation_back(config, tmp_path):
    model = {"name": "vit-nano-p8"}
    related = _with(config, model=model, relation={"name": "batchformer-v2", "at": ("all",), "lr_scale": 1.0})
    done = run(related, "own", tmp_path / "run", Display(quiet=True))
    plain = evaluate_run(tmp_path / "run", related.evaluate)["val"]
    asked = replace(related.evaluate, mini_batch=True)
    scores = evaluate_run(tmp_path / "run", asked)["val"]
    assert plain.nll == pytest.approx(done.scores["val"].nll, rel=1e-5)
    assert scores.nll != pytest.approx(plain.nll, rel=1e-6)
    during = run(replace(related, evaluate=asked), "own", tmp_path / "second", Display(quiet=True))
    assert during.scores["val"].nll == pytest.approx(scores.nll, rel=1e-5)
    with pytest.raises(ConfigError, match="mini_batch"):
        build(replace(config, evaluate=asked))


def test_batchformer_v2_settings_reach_the_model(config):
    settings = {"name": "batchformer-v2", "at": ("blocks.1-3",), "share": True, "related_fraction": 0.5}
    task, _ = build(_with(config, model={"name": "vit-nano-p8"}, relation=settings))
    assert task.relation.sites == ("blocks.1", "blocks.2", "blocks.3") and len(task.relation.module) == 1
    assert task.train().model(torch.randn(8, 3, 16, 16)).shape == (12, 3)


def test_large_steps_of_muon_on_loaded_weights_are_warned_of(config, tmp_path):
    file = _weights(config, tmp_path)
    with pytest.warns(UserWarning, match="little of the loaded weights will be left.*--train.optimizer adamw"):
        build(_with(config, model={"weights": file}, train={"optimizer": "muon", "lr": 0.05}))


@pytest.mark.parametrize(
    ("model", "train"),
    [
        ({}, {"optimizer": "muon", "lr": 0.05}),  # from scratch
        ({"weights": True}, {"optimizer": "muon", "lr": 1e-3}),
        ({"weights": True}, {"optimizer": "adamw", "lr": 1e-4}),
        ({"weights": True, "freeze": "backbone"}, {"optimizer": "muon", "lr": 0.05}),
    ],
)
def test_other_steps_are_not(config, tmp_path, model, train):
    if "weights" in model:
        model = {**model, "weights": _weights(config, tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(_with(config, model=model, train=train))
