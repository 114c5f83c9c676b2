"""Two stages of one run: each alone, both together, stopped between and within, and what does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from relatum.config import (
    DataConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    RelationConfig,
    RunConfig,
    TrainConfig,
)
from relatum.errors import ConfigError, ModelError
from relatum.models.small_vit import TIMM_NAME, timm_arguments
from relatum.recipes import classification
from relatum.recipes.pretraining import build_pretraining, load_autoencoder
from relatum.recipes.pretraining_settings import pretrain_settings
from relatum.recipes.stages import planned_stages, run
from relatum.relation import Presence
from relatum.train import Display

QUIET = Display(quiet=True)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> str:
    """Train (8, 6 and 2 images) and test folders of three classes."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, counts in (("train", (8, 6, 4)), ("test", (2, 2, 2))):
        for name, count in zip(("ant", "bee", "cow"), counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return str(root)


@pytest.fixture
def config(photos) -> RunConfig:
    """A small two-stage recipe on those."""
    return RunConfig(
        data=DataConfig(root=photos, image_size=16, batch_size=6, workers=0, normalise="half"),
        model=ModelConfig(name="vit-pico-p4", pool="avg", head_std=2e-5),
        pretrain=PretrainConfig(
            method="mae", epochs=2, batch_size=6, warmup_epochs=1, eval_every=1, pictures=2, neighbours=2, lr=1e-2
        ),
        objective=ObjectiveConfig(name="balanced-bce"),
        train=TrainConfig(epochs=2, optimizer="adamw", lr=1e-3, decay_all=False, precision="float32", device="cpu"),
    )


def _with(config: RunConfig, **rooms) -> RunConfig:
    return replace(config, **{room: replace(getattr(config, room), **values) for room, values in rooms.items()})


def test_one_run_directory_has_both_stages(config, tmp_path):
    done = run(config, "tiny", tmp_path / "run", QUIET)
    assert done.status == "finished" and done.scores["test"].samples == 6
    first = tmp_path / "run" / "pretrain"
    assert {p.name for p in first.iterdir()} >= {"config.toml", "manifest.json", "metrics.jsonl", "scores.json"}
    assert json.loads((first / "scores.json").read_text())["test"]["kind"] == "reconstruction"
    assert sorted(p.name for p in (first / "pictures").iterdir()) == ["epoch-0001.png", "epoch-0002.png"]
    assert json.loads((first / "manifest.json").read_text())["peak_lr"] == pytest.approx(1e-2 * 6 / 256)
    assert (tmp_path / "run" / "scores.json").exists()
    judged = json.loads((first / "probe.json").read_text())["k-nn"]["test"]
    assert judged["samples"] == 6 and judged["groups"]["few"]["classes"] == 3


def test_the_neighbours_are_asked_once_and_only_if_wanted(config, tmp_path):
    only = replace(config, stages=("pretrain",))
    run(_with(only, pretrain={"neighbours": 0}), "tiny", tmp_path / "none", QUIET)
    assert not (tmp_path / "none" / "pretrain" / "probe.json").exists()
    run(only, "tiny", tmp_path / "run", QUIET)
    file = tmp_path / "run" / "pretrain" / "probe.json"
    file.write_text("{}")
    run(only, "tiny", tmp_path / "run", QUIET)
    assert file.read_text() == "{}"
    file.unlink()  # as after a stop between the end of the training and this
    run(only, "tiny", tmp_path / "run", QUIET)
    assert "k-nn" in json.loads(file.read_text())


def test_the_second_stage_starts_from_the_encoder_of_the_first(config, tmp_path):
    # A rate of zero keeps the start, so that the end shows it.
    run(_with(config, train={"lr": 0.0, "weight_decay": 0.0}), "tiny", tmp_path / "run", QUIET)
    from relatum import load

    encoder = load_file(tmp_path / "run" / "pretrain" / "encoder.safetensors")
    found = load(tmp_path / "run").model.state_dict()
    shared = [name for name in encoder if name in found]
    assert len(shared) == len(encoder) - 2, "all but the final normalisation, which comes after pooling"
    assert all(torch.equal(found[name], encoder[name]) for name in shared)
    assert found["head.weight"].abs().max() < 1e-3 and found["head.bias"].abs().max() == 0


def test_the_encoder_file_is_a_timm_model_without_its_head(config, tmp_path):
    run(replace(config, stages=("pretrain",)), "tiny", tmp_path / "run", QUIET)
    model = timm.create_model(TIMM_NAME, num_classes=3, **timm_arguments("vit-pico-p4", 16))
    result = model.load_state_dict(load_file(tmp_path / "run" / "pretrain" / "encoder.safetensors"), strict=False)
    assert result.missing_keys == ["head.weight", "head.bias"] and result.unexpected_keys == []


def test_stage_by_stage_is_the_same_as_both_at_once(config, tmp_path):
    both = run(config, "tiny", tmp_path / "both", QUIET)
    run(replace(config, stages=("pretrain",)), "tiny", tmp_path / "apart", QUIET)
    assert not (tmp_path / "apart" / "scores.json").exists()
    apart = run(config, "tiny", tmp_path / "apart", QUIET)
    assert apart.scores == both.scores
    elsewhere = replace(_with(config, model={"encoder": str(tmp_path / "apart")}), stages=("finetune",))
    assert run(elsewhere, "tiny", tmp_path / "elsewhere", QUIET).scores == both.scores
    plain = run(_with(config, pretrain={"method": "none"}), "tiny", tmp_path / "plain", QUIET)
    assert plain.scores["test"].nll != both.scores["test"].nll, "from random weights it is another run"


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_stopped_in_its_first_stage_goes_on_there(config, tmp_path, steps):
    whole = run(config, "tiny", tmp_path / "whole", QUIET)
    run(replace(_with(config, train={"max_steps": steps}), stages=("pretrain",)), "tiny", tmp_path / "cut", QUIET)
    assert run(config, "tiny", tmp_path / "cut", QUIET).scores == whole.scores
    a, b = (load_autoencoder(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_finished_run_is_not_run_again(config, tmp_path):
    first = run(config, "tiny", tmp_path / "run", QUIET)
    written = (tmp_path / "run" / "pretrain" / "metrics.jsonl").stat().st_mtime_ns
    assert run(config, "tiny", tmp_path / "run", QUIET).scores == first.scores
    assert (tmp_path / "run" / "pretrain" / "metrics.jsonl").stat().st_mtime_ns == written


def test_other_pretraining_in_the_same_directory_is_refused(config, tmp_path):
    run(replace(config, stages=("pretrain",)), "tiny", tmp_path / "run", QUIET)
    with pytest.raises(ConfigError, match=r"pretrain\.ratio was 0\.75, now 0\.5"):
        run(_with(config, pretrain={"ratio": 0.5}), "tiny", tmp_path / "run", QUIET)
    again = run(_with(config, objective={"name": "bce"}), "tiny", tmp_path / "run", QUIET)
    assert again.status == "finished", "another objective leaves the first stage as it is"


def test_settings_that_the_first_stage_depends_on(config):
    base = pretrain_settings(config)
    assert pretrain_settings(_with(config, objective={"name": "bce"}, train={"lr": 0.5, "epochs": 9})) == base
    assert pretrain_settings(_with(config, data={"mixup": 0.8, "batch_size": 12})) == base
    assert pretrain_settings(_with(config, train={"seed": 1})) != base
    assert pretrain_settings(_with(config, pretrain={"lr": 1.0})) != base
    related = _with(config, pretrain={"relation": "batchformer-v2"})
    assert pretrain_settings(_with(related, relation={"dropout": 0.1})) != pretrain_settings(related)


def test_the_images_of_the_first_stage(config, photos):
    tail = _with(config, data={"long_tail": "exponential", "imbalance": 4.0})
    same, everything, balanced = (
        build_pretraining(_with(tail, pretrain={"subset": name}))[1].prior.counts.tolist()
        for name in ("same", "all", "balanced")
    )
    assert same == [8, 4, 2] and everything == [8, 6, 4] and balanced == [4, 4, 4]
    other = build_pretraining(_with(tail, pretrain={"root": f"{photos}/test"}))[1]
    assert other.prior.counts.tolist() == [2, 2, 2] and not other.evals


def test_a_subset_without_a_split_of_its_own_would_leak(config, photos):
    with pytest.raises(ConfigError, match="validation or test split of its own"):
        build_pretraining(_with(config, data={"root": f"{photos}/train"}, pretrain={"subset": "all"}))


def test_a_relation_in_the_decoder_may_fade(config):
    fading = {"fade_start": 0.25, "fade_end": 0.5}
    task, _ = build_pretraining(_with(config, pretrain={"relation": "batchformer-v2"}, relation=fading))
    assert task.presence == Presence(**fading)
    assert build_pretraining(_with(config, relation=fading))[0].presence == Presence()


def test_a_relation_in_the_decoder_stays_out_of_the_encoder(config, tmp_path):
    related = _with(config, pretrain={"relation": "batchformer-v2"}, relation={"dropout": 0.0})
    run(replace(related, stages=("pretrain",)), "tiny", tmp_path / "run", QUIET)
    rows = [json.loads(line) for line in (tmp_path / "run" / "pretrain" / "metrics.jsonl").read_text().splitlines()]
    assert any("loss/related" in row for row in rows)
    names = load_file(tmp_path / "run" / "pretrain" / "encoder.safetensors")
    assert names and not any("relat" in name for name in names)
    assert (
        load_autoencoder(tmp_path / "run").state_dict().keys() == build_pretraining(config)[0].model.state_dict().keys()
    )


@pytest.mark.parametrize("relation", ["batchformer", "batchformer-v2"])
def test_fine_tuning_with_a_relation(config, tmp_path, relation):
    settings = RelationConfig(name=relation)
    done = run(replace(config, relation=settings), "tiny", tmp_path / relation, QUIET)
    rows = [json.loads(line) for line in (tmp_path / relation / "metrics.jsonl").read_text().splitlines()]
    assert done.status == "finished" and any("loss/related" in row for row in rows)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"pretrain": {"warmup_epochs": 2.0}}, ConfigError, r"pretrain\.warmup_epochs is 2"),
        ({"data": {"image_size": 18}}, ModelError, "no multiple of 4"),
        ({"model": {"name": "resnet20-cifar", "pool": "default"}}, ConfigError, "no masked autoencoder preset"),
        ({"pretrain": {"ratio": 1.0}}, ConfigError, "between 0 and 1, both excluded"),
        ({"pretrain": {"ratio": 0.0}}, ConfigError, "between 0 and 1, both excluded"),
        ({"pretrain": {"ratio": 0.999}}, ConfigError, "ratio"),
        ({"pretrain": {"root": "x", "subset": "all"}}, ConfigError, "leave it out"),
        ({"model": {"weights": "w.safetensors"}}, ConfigError, "overwrite"),
        ({"model": {"encoder": "e.safetensors"}}, ConfigError, "--stages finetune"),
        ({"pretrain": {"relation_at": ("decoder.blocks.1",)}}, ConfigError, "needs a relation"),
    ],
)
def test_bad_settings_are_one_message_before_training(config, tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        run(_with(config, **change), "tiny", tmp_path / "run", QUIET)
    assert not (tmp_path / "run" / "pretrain" / "metrics.jsonl").exists()


def test_stages_that_do_not_exist_are_refused(config, tmp_path):
    plain = _with(config, pretrain={"method": "none"})
    assert planned_stages(plain) == ["finetune"]
    assert planned_stages(config) == ["pretrain", "finetune"]
    for bad, words in (
        (replace(plain, stages=("pretrain",)), "has no pretraining"),
        (replace(config, stages=("pretrain", "pretrain")), "once"),
        (replace(config, stages=()), "empty"),
        (replace(config, stages=("finetune",)), "no first stage"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(bad, "tiny", tmp_path / "run", QUIET)


def test_an_unfinished_first_stage_cannot_be_fine_tuned(config, tmp_path):
    (tmp_path / "run" / "pretrain").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no finished pretraining"):
        run(replace(config, stages=("finetune",)), "tiny", tmp_path / "run", QUIET)


def test_an_encoder_of_another_architecture_is_refused(config, tmp_path):
    run(replace(config, stages=("pretrain",)), "tiny", tmp_path / "run", QUIET)
    other = _with(config, model={"name": "vit-nano-p4", "encoder": str(tmp_path / "run")})
    with pytest.raises(ModelError, match="width 64"):
        run(replace(other, stages=("finetune",)), "tiny", tmp_path / "other", QUIET)


def test_the_encoder_of_the_settings_counts_without_the_stages_too(config, tmp_path):
    run(replace(config, stages=("pretrain",)), "tiny", tmp_path / "run", QUIET)
    file = tmp_path / "run" / "pretrain" / "encoder.safetensors"
    task, _ = classification.build(_with(config, model={"encoder": str(file)}))
    assert torch.equal(task.model.blocks[0].mlp.fc1.weight, load_file(file)["blocks.0.mlp.fc1.weight"])
    other, _ = classification.build(config)
    assert not torch.equal(other.model.blocks[0].mlp.fc1.weight, load_file(file)["blocks.0.mlp.fc1.weight"])
