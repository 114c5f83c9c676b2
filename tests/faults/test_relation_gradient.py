"""A relation that would not train stops the run at its first step, with nothing changed and nothing saved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from broken_steps import CONFIG, Harmful
from tiny import TRAIN, loaders, quiet, task, weights_of

from relatum.errors import TrainingError
from relatum.train import ClassificationTask, fit


class _Forgetful(ClassificationTask):
    """Its optimizer knows nothing of the relation: the mistake of a released system."""

    def param_groups(self, config):
        own = {id(p) for p in self.relation.module.parameters()}
        return [{"params": [p for p in self.model.parameters() if id(p) not in own], "weight_decay": 0.0}]


class _Deaf(ClassificationTask):
    """Its loss looks at the plain stream only."""

    def forward(self, batch):
        plain = self.relation.streams(self.model(batch.inputs))["plain"]
        return {"loss": self.objective(plain, batch.targets, None), "logits": plain}


class _Detaching(ClassificationTask):
    """Its loss looks at the related stream without its gradient."""

    def forward(self, batch):
        streams = self.relation.streams(self.model(batch.inputs))
        losses = [self.objective(logits, batch.targets, None) for logits in streams.values()]
        return {"loss": losses[0] + losses[1].detach()}


def _frozen(built):
    for parameter in built.relation.module.parameters():
        parameter.requires_grad_(False)
    return built


def _partly_frozen(built):
    list(built.relation.module.parameters())[-1].requires_grad_(False)
    return built


def _as(kind):
    def change(built):
        return kind(built.model, built.objective, built.relation)

    return change


_MISTAKES = {
    "not in the optimizer": (_as(_Forgetful), "not in exactly one optimizer group"),
    "frozen": (_frozen, "is frozen"),
    "one parameter frozen": (_partly_frozen, "is frozen"),
    "loss of the plain stream": (_as(_Deaf), "the loss does not see the related stream"),
    "related loss detached": (_as(_Detaching), "the loss does not see the related stream"),
}


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize(("mistake", "words"), _MISTAKES.values(), ids=_MISTAKES.keys())
def test_it_stops_at_step_one(tmp_path, mistake, words, policy):
    built = mistake(task(relation=True))
    before = {name: p.detach().clone() for name, p in built.model.named_parameters()}
    with pytest.raises(TrainingError, match=words):
        fit(built, loaders(), replace(TRAIN, on_nonfinite=policy), out=tmp_path, display=quiet())
    for name, parameter in built.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    assert not list((tmp_path / "checkpoints").iterdir())
    assert not (tmp_path / "metrics.jsonl").exists()
    assert json.loads((tmp_path / "manifest.json").read_text())["steps"] == 0


def test_a_related_stream_of_weight_zero_stops_too():
    with pytest.raises(TrainingError, match="got only zero gradients"):
        fit(task(relation=True, streams=(1.0, 0.0)), loaders(), TRAIN, display=quiet())


def test_a_first_step_that_is_left_out_does_not_excuse_the_second(tmp_path):
    data = loaders()
    built = Harmful(data, [(0, 0), (0, 1)], "nan", relation=True)
    harm = _frozen(built)
    with pytest.raises(TrainingError, match="is frozen"):
        fit(harm, data, replace(CONFIG, on_nonfinite="skip"), out=tmp_path, display=quiet())
    assert built.met == 4
    assert not list((tmp_path / "checkpoints").iterdir())


def test_the_proof_is_asked_for_once_at_the_first_step_that_is_taken():
    data = loaders()
    built, asked = Harmful(data, [(0, 0), (0, 3), (1, 1)], "nan", relation=True), []
    built.check_first_step = lambda optimizer: asked.append(built.model.norm.num_batches_tracked.item())
    fit(built, data, replace(CONFIG, on_nonfinite="skip"), display=quiet())
    assert asked == [1]


def test_a_learning_rate_of_zero_for_the_relation_is_a_choice(tmp_path):
    """Asked for in so many words: a relation of random weights that stay, through which the model learns."""
    built = task(relation=True, relation_lr_scale=0.0)
    before = weights_of(built.model)
    done = fit(built, loaders(), TRAIN, out=tmp_path, display=quiet())
    assert done.status == "finished"
    after = weights_of(built.model)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert {"conv.weight", "fc.weight"} <= moved
    assert not [name for name in moved if name.startswith("relation.")]
