"""The task of masked pretraining: its loss against a loop, one mask for all streams, measures, pictures, resuming."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from relatum import BatchFormerV2, attach
from relatum.batch import Batch
from relatum.config import DataConfig, EvalConfig, TrainConfig
from relatum.data.loaders import loaders_from_splits
from relatum.data.source import ArraySource
from relatum.models.last_block import block_for
from relatum.models.mae import create_mae
from relatum.relation import Presence
from relatum.train import Display, MaskedTask, fit
from relatum.train.masked import Reconstruction

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
TRAIN = TrainConfig(epochs=2, optimizer="adamw", lr=1e-3, decay_all=False, precision="float32", device="cpu")


def _model(**options):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
    return create_mae("vit-pico-p4", **{**sizes, **options})


def _task(spec=None, pictures=2, presence=None, **options) -> MaskedTask:
    model = _model(**options)
    relation = None if spec is None else attach(model, spec)
    return MaskedTask(model, relation, mean=MEAN, std=STD, pictures=pictures, presence=presence)


def _batch(n=6) -> Batch:
    images = torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return Batch((images - 0.5) / 0.25, torch.zeros(n, dtype=torch.int64), torch.arange(n))


def _loaders(images=14, batch_size=4, **options):
    random = np.random.default_rng(0)

    def source(n):
        return ArraySource(random.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8), np.arange(n) % 2, ("a", "b"))

    config = DataConfig(image_size=16, batch_size=batch_size, workers=0, normalise="half", augment="weak", **options)
    return loaders_from_splits({"train": source(images), "test": source(10)}, config)


def _loop_loss(output) -> float:
    """Mean over hidden patches of the mean squared difference, one patch at a time in float64."""
    errors = []
    for n, i in np.ndindex(*output.mask.shape):
        if output.mask[n, i]:
            errors.append((output.prediction[n, i].double() - output.targets[n, i].double()).square().mean().item())
    return sum(errors) / len(errors)


def test_the_loss_is_that_of_the_hidden_patches():
    task, batch = _task(), _batch()
    torch.manual_seed(5)
    found = task(batch)["loss"]
    torch.manual_seed(5)
    with torch.no_grad():
        output = task.model(batch.inputs)
    assert found.item() == pytest.approx(_loop_loss(output), rel=1e-5)
    torch.manual_seed(6)
    assert task(batch)["loss"].item() != pytest.approx(found.item(), rel=1e-6), "another mask, another loss"


@pytest.mark.parametrize(("spec", "decoded"), [(None, 12), (BatchFormerV2(at=("decoder.blocks.0",), heads=2), 16)])
def test_visible_patches_are_decoded_for_a_relation_only(spec, decoded):
    task, seen = _task(spec), []
    task.model.decoder.norm.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))
    task.train()(_batch(8))
    assert seen == [decoded]


def test_in_the_loop_too_the_last_block_computes_hidden_patches_only(monkeypatch):
    task, read = _task(), []

    def recorded(block, tokens, wanted):
        read.append((block, wanted(tokens).shape[1]))
        return block_for(block, tokens, wanted)

    monkeypatch.setattr("relatum.models.mae.decoder.block_for", recorded)
    fit(task, _loaders(), replace(TRAIN, max_steps=1), display=Display(quiet=True))
    assert read[0] == (task.model.decoder.blocks[-1], 12)


def test_both_streams_of_a_relation_have_one_mask_and_the_plain_one_is_the_model_alone():
    spec = BatchFormerV2(at="decoder.blocks.0", dropout=0.0, heads=2)
    task, batch = _task(spec), _batch()
    torch.manual_seed(5)
    output = task(batch)
    task.relation.detach()
    torch.manual_seed(5)
    alone = task.model(batch.inputs)
    assert output["loss/plain"].item() == pytest.approx(_loop_loss(alone), rel=1e-5)
    assert output["loss/related"] != output["loss/plain"], "the related stream is another one"
    mean = (output["loss/plain"] + output["loss/related"]) / 2
    torch.testing.assert_close(output["loss"].detach(), mean)


def test_the_related_stream_may_fade_out():
    spec = BatchFormerV2(at="decoder.blocks.0", dropout=0.0, heads=2)
    task, plain, batch = _task(spec, presence=Presence(0.0, 0.5)), _task(), _batch()
    task.set_progress(0.25)
    parts = {name: value.item() for name, value in task(batch).items()}
    assert parts["loss"] == pytest.approx(0.75 * parts["loss/plain"] + 0.25 * parts["loss/related"], rel=1e-5)
    task.set_progress(0.5)
    torch.manual_seed(5)
    faded = task(batch)
    faded["loss"].backward()
    assert set(faded) == {"loss", "loss/plain"} and all(p.grad is None for p in task.relation.module.parameters())
    torch.manual_seed(5)
    torch.testing.assert_close(faded["loss"], plain(batch)["loss"])  # which decodes hidden patches only: rounding


def test_the_related_stream_relates_the_images_and_trains_the_relation():
    task, batch = _task(BatchFormerV2(at="decoder.blocks.0", dropout=0.0, heads=2)), _batch()
    torch.manual_seed(5)
    first = task(batch)
    first["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in task.relation.module.parameters())
    other = batch.inputs.clone()
    other[-1] += 1.0
    before, after = _predictions(task, batch.inputs), _predictions(task, other)
    n = len(batch)
    torch.testing.assert_close(before[: n - 1], after[: n - 1])  # the plain stream of the others does not see it
    assert not torch.allclose(before[n : 2 * n - 1], after[n : 2 * n - 1], atol=1e-6)


@torch.no_grad()
def _predictions(task, images):
    torch.manual_seed(5)
    return task.model(images).prediction


def test_a_single_related_stream_counts_fully():
    task = _task(BatchFormerV2(at="decoder.blocks.0", dropout=0.0, heads=2, two_streams=False))
    output = task(_batch())
    torch.testing.assert_close(output["loss"].detach(), output["loss/related"])


def test_measures_against_a_loop_and_the_same_at_every_call():
    task, loaders = _task(normalised=False), _loaders()
    how = {"split": "test", "device": torch.device("cpu"), "precision": "float32", "channels_last": False}
    found = task.evaluate(task.model, loaders.evals["test"], loaders.prior, EvalConfig(), **how)
    assert found == task.evaluate(task.model, loaders.evals["test"], loaders.prior, EvalConfig(), **how)
    images = next(iter(loaders.evals["test"])).inputs  # all ten fit into one batch
    with torch.no_grad():
        seeds = (torch.Generator().manual_seed(1_000_003 * place) for place in range(10))
        noise = torch.cat([torch.rand(1, task.model.grid[0] * task.model.grid[1], generator=seed) for seed in seeds])
        output = task.model.eval()(images, noise=noise)
    pixels = [(x.double() * 0.25 + 0.5).clamp(0, 1) for x in (output.prediction, output.targets)]
    mse = float(np.mean([(pixels[0][n] - pixels[1][n])[output.mask[n]].square().mean().item() for n in range(10)]))
    assert found.loss == pytest.approx(_loop_loss(output), rel=1e-5)
    assert found.mse == pytest.approx(mse, rel=1e-4)
    assert found.psnr == pytest.approx(-10 * math.log10(found.mse))
    assert (found.samples, found.mask, found.ratio, found.pixels) == (10, "random", 0.75, "raw")
    assert task.read_scores(found.to_dict()) == found


def test_evaluation_leaves_the_mode_alone():
    task, loaders = _task(), _loaders()
    how = {"split": "test", "device": torch.device("cpu"), "precision": "float32", "channels_last": False}
    task.model.train()
    task.evaluate(task.model, loaders.evals["test"], loaders.prior, EvalConfig(), **how)
    assert task.model.training and task.model.decoder.training


@pytest.mark.parametrize("spec", [None, BatchFormerV2(at="decoder.blocks.0", heads=2)])
def test_fit_writes_measures_and_pictures(tmp_path, spec):
    done = fit(_task(spec), _loaders(), TRAIN, out=tmp_path / "run", display=Display(quiet=True))
    assert isinstance(done.scores["test"], Reconstruction)
    assert sorted(p.name for p in (tmp_path / "run" / "pictures").iterdir()) == ["epoch-0001.png", "epoch-0002.png"]
    with Image.open(tmp_path / "run" / "pictures" / "epoch-0002.png") as picture:
        assert picture.width > 3 * 100 and picture.height > 2 * 100
    again = fit(_task(spec), _loaders(), TRAIN, out=tmp_path / "run", display=Display(quiet=True))
    assert again.scores == done.scores and again.steps == done.steps


def test_no_pictures_on_demand(tmp_path):
    fit(_task(pictures=0), _loaders(), TRAIN, out=tmp_path / "run", display=Display(quiet=True))
    assert not (tmp_path / "run" / "pictures").exists()


def test_a_stopped_pretraining_goes_on_as_if_it_had_not(tmp_path):
    whole = _task(BatchFormerV2(at="decoder.blocks.0", heads=2))
    fit(whole, _loaders(), TRAIN, out=tmp_path / "whole", display=Display(quiet=True))
    fit(
        _task(whole.relation.spec),
        _loaders(),
        replace(TRAIN, max_steps=5),
        out=tmp_path / "cut",
        display=Display(quiet=True),
    )
    resumed = _task(whole.relation.spec)
    before = {name: p.clone() for name, p in resumed.model.state_dict().items()}
    fit(resumed, _loaders(), TRAIN, out=tmp_path / "cut", display=Display(quiet=True))
    assert any(not torch.equal(p, before[name]) for name, p in resumed.model.state_dict().items())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def _encoded(task, monkeypatch):
    """The number of images in each call of the encoder."""
    rows, encode = [], task.model.encode

    def counted(patches, ids_keep):
        rows.append(len(patches))
        return encode(patches, ids_keep)

    monkeypatch.setattr(task.model, "encode", counted)
    return rows


def test_training_computes_a_share_of_the_batch_in_each_thread(two_threads, monkeypatch):
    task, batch = _task(), _batch(128)
    rows = _encoded(task, monkeypatch)
    task.train()(batch)["loss"].backward()
    assert rows == [64, 64]
    for alone in ("eval", "small", "processes", "one thread"):
        rows.clear()
        if alone == "processes":
            monkeypatch.setattr("relatum.train.masked.world", lambda: 2)
        if alone == "one thread":
            monkeypatch.setattr("relatum.train.masked.world", lambda: 1)
            torch.set_num_threads(1)
        task.train(alone != "eval")(_batch(127 if alone == "small" else 128))
        assert rows == [127 if alone == "small" else 128], alone


def test_in_the_loop_too(two_threads, monkeypatch):
    task = _task()
    rows = _encoded(task, monkeypatch)
    fit(task, _loaders(images=320, batch_size=128), replace(TRAIN, max_steps=1), display=Display(quiet=True))
    assert rows[:3] == [64, 64, 10], "the step, then the test split"


def test_in_shares_the_loss_is_that_of_the_hidden_patches_and_the_mask_the_same(two_threads):
    found = []
    for shared in (True, False):
        task = _task()
        task.in_shares = shared
        torch.manual_seed(5)
        loss = task(_batch(128))["loss"]
        loss.backward()
        found.append((loss, task.model.decoder.pred.weight.grad, torch.rand(1)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_the_threads_take_the_quick_attention_and_every_run_has_the_same_bits(two_threads):
    task, found = _task(), []
    for _ in range(8):
        task.zero_grad()
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            task(_batch(128))["loss"].backward()
        found.append([p.grad for p in task.parameters() if p.grad is not None])
    assert all(torch.equal(one, other) for run in found for one, other in zip(run, found[0], strict=True))
    attentions = [block.attn for part in (task.model.encoder, task.model.decoder) for block in part.blocks]
    assert all("forward" not in vars(part) and part.fused_attn for part in attentions)


def test_shares_and_all_a_stopped_run_goes_on_to_the_same_bits(two_threads, tmp_path):
    def run(out, **changes):
        task = _task()
        loaders = _loaders(images=320, batch_size=128)
        fit(task, loaders, replace(TRAIN, **changes), out=tmp_path / out, display=Display(quiet=True))
        return task.model.state_dict()

    whole = run("whole")
    run("cut", max_steps=3)
    resumed = run("cut")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_tokens_are_decayed_and_positions_do_not_train():
    task = _task()
    groups = task.param_groups(TRAIN)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert id(task.model.encoder.cls_token) in decayed and id(task.model.decoder.mask_token) in decayed
    listed = {id(p) for group in groups for p in group["params"]}
    assert id(task.model.encoder.pos_embed) not in listed
    assert id(task.model.encoder.norm.weight) in listed - decayed
