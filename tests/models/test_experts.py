"""Experts: each learns from its own loss, together they are a linear layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import relatum
from relatum.batch import Batch
from relatum.classifier.linear import fold, linear_classifier, linear_from, plain_copy
from relatum.errors import ModelError
from relatum.models.experts import ExpertLinear, one_by_one, vote
from relatum.models.fast_net import FastNet
from relatum.objectives import CrossEntropy
from relatum.train.classification import ClassificationTask


def _net(experts=3):
    torch.manual_seed(0)
    return FastNet((4, 6, 8), 5, experts=experts)


def _batch(n=6):
    generator = torch.Generator().manual_seed(1)
    return Batch(
        torch.randn(n, 3, 16, 16, generator=generator), torch.randint(5, (n,), generator=generator), torch.arange(n)
    )


def test_each_expert_answers_from_its_own_features_alone():
    layer = ExpertLinear(12, 5, 3).double()
    x = torch.randn(4, 12, dtype=torch.float64)
    expected = torch.stack([3 * x[:, i : i + 4] @ layer.weight[:, i : i + 4].T for i in (0, 4, 8)], 1)
    torch.testing.assert_close(layer(x), expected)


def test_the_mean_of_the_experts_is_the_linear_layer_of_evaluation():
    layer = ExpertLinear(12, 5, 3).double()
    x = torch.randn(4, 12, dtype=torch.float64)
    apart = layer(x)
    together = layer.eval()(x)
    torch.testing.assert_close(vote(apart), together)
    torch.testing.assert_close(F.linear(x, layer.weight), together)
    # Their geometric mean as probabilities, normalised.
    torch.testing.assert_close(apart.log_softmax(-1).mean(1).softmax(-1), together.softmax(-1))


def test_the_classifier_starts_as_one_of_each_expert_would():
    torch.manual_seed(0)
    weight = ExpertLinear(3 * 400, 50, 3).weight
    assert float(weight.detach().abs().max()) == pytest.approx(1 / 20, rel=1e-3)


def test_the_loss_is_the_mean_of_the_losses_of_the_experts():
    model, batch = _net().train(), _batch()
    result = ClassificationTask(model, CrossEntropy())(batch)
    logits = model(batch.inputs)
    expected = torch.stack([F.cross_entropy(logits[:, e], batch.targets) for e in range(3)]).mean()
    torch.testing.assert_close(result["loss"], expected)
    assert result["logits"].shape == (6, 5)
    assert result["accuracy"] == (logits.mean(1).argmax(1) == batch.targets).float().mean()


def test_the_loss_of_one_expert_does_not_reach_the_others():
    model, batch = _net().train(), _batch()
    F.cross_entropy(model(batch.inputs)[:, 1], batch.targets).backward()
    touched = [any(bool(p.grad.any()) for p in top.parameters() if p.grad is not None) for top in model.stages[2]]
    assert touched == [False, True, False]
    parts = model.fc.weight.grad.unflatten(1, (3, -1))
    assert [bool(parts[:, e].any()) for e in range(3)] == [False, True, False]


def test_an_answer_for_each_token_is_not_taken_for_experts():
    class Tokens(torch.nn.Module):
        def forward(self, x):
            return x.mean((1, 2))[:, :12].reshape(-1, 4, 3).requires_grad_()

    with pytest.raises(ModelError, match=r"\(6, 4, 3\)"):
        ClassificationTask(Tokens(), CrossEntropy())(_batch())


def test_experts_start_apart():
    tops = _net().stages[2]
    weights = [top.conv1.conv.weight for top in tops]
    assert not any(torch.allclose(weights[0], other) for other in weights[1:])


def test_soft_targets_and_features_are_repeated_with_the_answers():
    logits, targets = torch.randn(2, 3, 5), torch.randn(2, 5)
    flat, repeated, none = one_by_one(logits, targets, None)
    assert none is None
    torch.testing.assert_close(flat.view(2, 3, 5), logits)
    torch.testing.assert_close(repeated.view(2, 3, 5), targets[:, None].expand(2, 3, 5))
    single = torch.randn(2, 5)
    assert one_by_one(single, targets)[0] is single
    assert vote(single) is single


def test_a_relation_trains_over_the_features_of_all_experts_and_leaves_no_trace():
    model, batch = _net(), _batch()
    relation = relatum.attach(model, relatum.BatchFormer(heads=2))
    task = ClassificationTask(model, CrossEntropy(), relation).train()
    result = task(batch)
    assert {"loss/plain", "loss/related", "agreement"} <= result.keys()
    assert result["logits"].shape == (6, 5)
    result["loss"].backward()
    relation.check_gradients()
    relation.detach()
    fresh = _net()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(batch.inputs), fresh.eval()(batch.inputs))


def test_tools_for_a_linear_classifier_take_it_as_one():
    model, images = _net().eval(), _batch().inputs
    features = model.forward_head(model.forward_features(images), pre_logits=True)
    head = plain_copy(linear_classifier(model)[1])
    torch.testing.assert_close(head(features), model(images))
    torch.testing.assert_close(fold(model, linear_from(head.weight / 2, None))(images), model(images) / 2)


def test_the_classifier_can_be_reset_and_removed():
    model = _net()
    model.reset_classifier(7)
    assert model.train()(_batch().inputs).shape == (6, 3, 7)
    model.reset_classifier(0)
    assert model(_batch().inputs).shape == (6, 24)


def test_another_kind_of_classifier_is_refused_with_the_reason():
    with pytest.raises(ModelError, match="experts"):
        relatum.create_model("fastnet-experts", 5, head="cosine")
