"""A small ViT with all that DeiT trains with, together: it learns, and it resumes bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import SignalAt, assert_as_if_nothing_happened, loaders, newest, quiet, rows

from relatum.config import TrainConfig
from relatum.models import create_model
from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask, Run, fit

EPOCHS = 2
DEIT = TrainConfig(
    epochs=EPOCHS,
    optimizer="adamw",
    lr=1e-3,
    weight_decay=0.05,
    decay_all=False,
    layer_decay=0.75,
    warmup_epochs=0.5,
    ema=0.99,
    clip=1.0,
    seed=3,
    precision="float32",
    device="cpu",
)


def fit_deit(out: Path, display=None, *, config=DEIT, drop_path=0.1, smoothing=0.1, relation=True, **data) -> Run:
    """Two epochs of three steps, or what is left of them."""
    torch.manual_seed(0)
    model = create_model("vit-nano-p8", 3, img_size=16, drop_path=drop_path)
    handle = attach(model, BatchFormer(dropout=0.1)) if relation else None
    task = ClassificationTask(model, CrossEntropy(label_smoothing=smoothing), handle)
    options = {"augment": "weak", "mixup": 0.8, "cutmix": 1.0, "images": 24, "seed": 3, "epochs": EPOCHS} | data
    return fit(task, loaders(**options), config, out=out, display=display or quiet())


@pytest.fixture(scope="module")
def whole_deit(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("deit")
    assert fit_deit(out).status == "finished"
    return out


def test_the_run_warms_up_follows_the_cosine_and_keeps_an_average(whole_deit):
    assert [row["lr"] for row in rows(whole_deit, kind="train")][-1] < DEIT.lr
    state = newest(whole_deit)
    assert not torch.equal(state["ema.head.weight"], state["model.head.weight"])
    assert [row["split"] for row in rows(whole_deit, kind="eval")] == ["val"] * EPOCHS


@pytest.mark.parametrize(
    "change",
    [
        {"drop_path": 0.0},
        {"smoothing": 0.0},
        {"mixup": 0.0},
        {"cutmix": 0.0},
        {"config": replace(DEIT, layer_decay=1.0)},
        {"config": replace(DEIT, decay_all=True)},
        {"config": replace(DEIT, beta2=0.95)},
    ],
    ids=lambda change: "-".join(change),
)
def test_every_part_has_a_say(tmp_path, whole_deit, change):
    """What the comparison below rests on can fail: without any one of them the bits are others."""
    fit_deit(tmp_path, **change)
    before = newest(whole_deit)["model.patch_embed.proj.weight"]
    assert not torch.equal(newest(tmp_path)["model.patch_embed.proj.weight"], before)


@pytest.mark.parametrize("steps", [(2,), (3, 5)], ids=["within an epoch", "between epochs and again"])
def test_after_an_interruption_it_ends_in_the_same_bits(tmp_path, whole_deit, steps):
    for step in steps:
        stopped = fit_deit(tmp_path, SignalAt(step))
        assert (stopped.status, stopped.steps) == ("interrupted", step)
    assert fit_deit(tmp_path).status == "finished"
    assert_as_if_nothing_happened(tmp_path, whole_deit)


def test_it_learns_without_a_relation(tmp_path):
    config = replace(DEIT, epochs=4, lr=2e-3, ema=0.5)
    run = fit_deit(tmp_path, config=config, relation=False, images=80, epochs=4)
    assert run.scores["val"].top1 > 0.6
