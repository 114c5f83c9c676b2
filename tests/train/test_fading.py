"""A related stream that fades out: the loss and the whole training against float64 definitions, resumed to the bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from by_hand import exact_task, stream_losses, train_by_hand
from tiny import (
    CLASSES,
    EVERYTHING,
    TRAIN,
    SignalAt,
    Smooth,
    assert_as_if_nothing_happened,
    loaders,
    quiet,
    rows,
    task,
    weights_of,
)

from relatum.errors import ConfigError
from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, Presence, attach
from relatum.train import ClassificationTask, fit

FADING = Presence(fade_start=0.3, fade_end=0.7)


@pytest.mark.parametrize("streams", ["mean", (0.8, 0.2), "released"])
def test_weights_shift_and_their_sum_stays(streams):
    built = exact_task(presence=FADING, streams=streams)
    first, second = {"mean": (0.5, 0.5), "released": (1.5, 1.5)}.get(streams, streams)
    batch = next(iter(loaders().train.epoch(0)))
    plain, related = (float(loss.detach()) for loss in stream_losses(built, batch))
    assert plain != pytest.approx(related)
    for done, share in ((0.0, 1.0), (0.3, 1.0), (0.4, 0.75), (0.6, 0.25)):
        built.set_progress(done)
        expected = (first + (1 - share) * second) * plain + share * second * related
        assert float(built(batch)["loss"].detach()) == pytest.approx(expected, rel=1e-12)
    built.set_progress(0.7)
    output = built(batch)
    assert float(output["loss"].detach()) == pytest.approx((first + second) * plain, rel=1e-12)
    assert set(output) == {"loss", "logits", "loss/plain", "accuracy/plain"}
    assert float(built.eval()(batch)["loss"].detach()) == pytest.approx(plain, rel=1e-12)
    built.train().set_progress(0.0)
    assert float(built(batch)["loss"].detach()) == pytest.approx(first * plain + second * related, rel=1e-12)


def test_a_training_equals_the_one_written_out_step_by_step():
    config = replace(TRAIN, schedule="constant", weight_decay=0.05, epochs=2)

    def line(done):
        return min(1.0, max(0.0, (0.7 - done) / 0.4))

    expected, built = exact_task(), exact_task(presence=FADING)
    start = weights_of(built.model)
    train_by_hand(expected, loaders(epochs=2), config, line)
    fit(built, loaders(epochs=2), config, display=quiet())
    moved = []
    for name, tensor in built.model.state_dict().items():
        torch.testing.assert_close(tensor, expected.model.state_dict()[name], rtol=1e-10, atol=1e-12)
        moved.append(not torch.equal(tensor, start[name]))
    assert all(moved)
    unfaded = exact_task()
    fit(unfaded, loaders(epochs=2), config, display=quiet())
    assert not torch.allclose(unfaded.model.fc.weight, built.model.fc.weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_from_the_end_of_the_fading_on_the_relation_is_left_alone(optimizer):
    config, seen = replace(TRAIN, optimizer=optimizer, weight_decay=0.1, ema=0.9), []

    class Watched(ClassificationTask):
        def forward(self, batch):
            seen.append((weights_of(self.relation.module), weights_of(self.model.fc)))
            return super().forward(batch)

    built = task(relation=True)
    watched = Watched(built.model, built.objective, built.relation, presence=Presence(0.2, 0.4))
    fit(watched, loaders(), config, display=quiet())
    changed = [
        [any(not torch.equal(a[key], b[key]) for key in a) for a, b in zip(before, after, strict=True)]
        for before, after in pairwise(seen)
    ]
    # 15 steps; that at 6/15 = 0.4 is the first without the relation, and six have been taken before it.
    assert changed == [[True, True]] * 6 + [[False, True]] * 8


def test_a_row_of_the_log_holds_means_over_the_steps_that_had_the_stream(tmp_path):
    built, agreed = task(relation=True, presence=Presence(0.2, 0.2)), []
    forward = built.forward

    def look(batch):
        output = forward(batch)
        agreed.extend([float(output["agreement"])] if "agreement" in output else [])
        return output

    built.forward = look
    fit(built, loaders(epochs=1), replace(TRAIN, epochs=1), out=tmp_path / "one", display=quiet())
    (row,) = rows(tmp_path / "one", kind="train")
    assert len(agreed) == 1 and row["agreement"] == pytest.approx(agreed[0])
    fit(task(relation=True, presence=Presence(0.3, 0.3)), loaders(), TRAIN, out=tmp_path / "three", display=quiet())
    assert ["loss/related" in row for row in rows(tmp_path / "three", kind="train")] == [True, False, False]


@pytest.mark.parametrize("steps", [(6,), (8,), (3, 9, 10, 13)], ids=["while it fades", "at its end", "again and again"])
def test_an_interrupted_training_ends_in_the_same_bits_and_rows(tmp_path, steps):
    def run(out, display):
        built = task(relation=True, dropout=0.4, presence=Presence(0.2, 0.55))
        data = loaders(augment="weak", mixup=0.4, seed=3)
        return fit(built, data, EVERYTHING, out=tmp_path / out, display=display)

    assert run("whole", quiet()).status == "finished"
    for step in steps:
        assert run("cut", SignalAt(step)).status == "interrupted"
    assert run("cut", quiet()).status == "finished"
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


def test_another_fading_is_another_run(tmp_path):
    fit(task(relation=True, presence=FADING), loaders(), TRAIN, out=tmp_path, display=SignalAt(3))
    with pytest.raises(ConfigError, match="presence"):
        fit(task(relation=True), loaders(), TRAIN, out=tmp_path, display=quiet())


def test_nothing_to_fade_is_refused():
    with pytest.raises(ConfigError, match="two streams"):
        task(presence=FADING)
    model = Smooth()
    single = attach(model, BatchFormer(heads=2, shared_classifier=False), num_classes=len(CLASSES))
    with pytest.raises(ConfigError, match="two streams"):
        ClassificationTask(model, CrossEntropy(), single, presence=FADING)
