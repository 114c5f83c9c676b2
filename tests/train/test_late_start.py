"""A relation that joins late: the plain model to the bit before, the written-out training after, and still proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from by_hand import exact_task, train_by_hand
from tiny import (
    EVERYTHING,
    TRAIN,
    SignalAt,
    assert_as_if_nothing_happened,
    assert_same_bits,
    loaders,
    quiet,
    rows,
    task,
    weights_of,
)

from relatum.errors import TrainingError
from relatum.relation import Presence
from relatum.train import ClassificationTask, fit

LATE = Presence(start=0.4)  # step 6 of 15 is the first with the relation


def _host(built):
    return {name: tensor for name, tensor in weights_of(built.model).items() if not name.startswith("relation.")}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_until_it_joins_the_plain_model_trains_alone_to_the_bit(optimizer):
    config = replace(TRAIN, optimizer=optimizer, weight_decay=0.1)

    def run(steps, **options):
        built = task(dropout=0.3, **options)
        start = weights_of(built.model)
        fit(built, loaders(), replace(config, max_steps=steps), display=quiet())
        return built, start

    plain, (late, start) = run(6)[0], run(6, relation=True, presence=LATE)
    assert_same_bits(_host(late), _host(plain))
    assert all(torch.equal(tensor, start[f"relation.{n}"]) for n, tensor in late.relation.module.state_dict().items())
    late, start = run(7, relation=True, presence=LATE)
    assert not torch.equal(late.model.fc.weight, run(7)[0].model.fc.weight)
    moved = {n: not torch.equal(t, start[f"relation.{n}"]) for n, t in late.relation.module.state_dict().items()}
    assert all(moved.values()), moved


@pytest.mark.parametrize("fade", [(1.0, 1.0), (0.6, 0.9)])
def test_a_training_equals_the_one_written_out_step_by_step(fade):
    config = replace(TRAIN, schedule="constant", weight_decay=0.05, epochs=2)

    def share(done):
        if done < 0.3:
            return 0.0
        return 1.0 if fade == (1.0, 1.0) else min(1.0, max(0.0, (0.9 - done) / 0.3))

    expected, built = exact_task(), exact_task(presence=Presence(*fade, start=0.3))
    train_by_hand(expected, loaders(epochs=2), config, share)
    fit(built, loaders(epochs=2), config, display=quiet())
    for name, tensor in built.model.state_dict().items():
        torch.testing.assert_close(tensor, expected.model.state_dict()[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("steps", [(4,), (6,), (5, 7, 11)], ids=["before", "when it joins", "again and again"])
def test_an_interrupted_training_ends_in_the_same_bits_and_rows(tmp_path, steps):
    def run(out, display):
        built = task(relation=True, dropout=0.4, presence=Presence(0.6, 0.8, start=0.4))
        data = loaders(augment="weak", mixup=0.4, seed=3)
        return fit(built, data, EVERYTHING, out=tmp_path / out, display=display)

    assert run("whole", quiet()).status == "finished"
    found = ["loss/related" in row for row in rows(tmp_path / "whole", kind="train")]
    assert found == [False, True, True]
    for step in steps:
        assert run("cut", SignalAt(step)).status == "interrupted"
    assert run("cut", quiet()).status == "finished"
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


# -- the proof that it trains ------------------------------------------------------------------------------------------


class Deaf(ClassificationTask):
    """Its loss looks at the plain stream only."""

    def forward(self, batch):
        plain = self.relation.streams(self.model(batch.inputs))["plain"]
        return {"loss": self.objective(plain, batch.targets, None), "logits": plain}


def _deaf():
    built = task(relation=True)
    return Deaf(built.model, built.objective, built.relation, presence=LATE)


def test_a_relation_that_would_not_train_stops_the_run_where_it_joins(tmp_path):
    built = _deaf()
    with pytest.raises(TrainingError, match="does not see the related stream"):
        fit(built, loaders(), TRAIN, out=tmp_path, display=quiet())
    plain = task()
    fit(plain, loaders(), replace(TRAIN, max_steps=6), display=quiet())
    assert torch.equal(built.model.fc.weight, plain.model.fc.weight), "six steps were taken, and none after"
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.safetensors")] == ["step-000000005.safetensors"]


@pytest.mark.parametrize("stop", [3, 6])
def test_an_interruption_does_not_excuse_it(tmp_path, stop):
    assert fit(_deaf(), loaders(), TRAIN, out=tmp_path, display=SignalAt(stop)).steps == stop
    with pytest.raises(TrainingError, match="does not see the related stream"):
        fit(_deaf(), loaders(), TRAIN, out=tmp_path, display=quiet())


def test_a_relation_outside_the_optimizer_is_noticed_at_the_first_step_already():
    built = task(relation=True, presence=LATE)
    next(built.relation.module.parameters()).requires_grad_(False)
    before = weights_of(built.model)
    with pytest.raises(TrainingError, match="is frozen"):
        fit(built, loaders(), TRAIN, display=quiet())
    assert all(torch.equal(parameter, before[name]) for name, parameter in built.model.named_parameters())


class Checked(ClassificationTask):
    """Counts the steps, harms some of them, and remembers at which ones it was asked for the proof."""

    def __init__(self, harmed=()):
        built = task(relation=True)
        super().__init__(built.model, built.objective, built.relation, presence=LATE)
        self.step, self.harmed, self.asked = -1, harmed, []

    def set_progress(self, done):
        super().set_progress(done)
        self.step = round(done * 15)

    def forward(self, batch):
        output = super().forward(batch)
        return {**output, "loss": output["loss"] * float("nan")} if self.step in self.harmed else output

    def check_first_step(self, optimizer):
        super().check_first_step(optimizer)
        self.asked.append(self.step)


@pytest.mark.parametrize(("harmed", "asked"), [((), [0, 6]), ((6, 7), [0, 8]), ((0, 6), [1, 7])])
def test_the_proof_is_asked_for_at_the_first_step_and_where_it_joins(harmed, asked):
    built = Checked(harmed)
    fit(built, loaders(), replace(TRAIN, on_nonfinite="skip"), display=quiet())
    assert built.asked == asked
