"""cRT and LWS: class-balanced fits on frozen features."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from relatum.classifier import CRT, LWS, CachedFeatures, FeatureSet, retune
from relatum.errors import ConfigError, ModelError, TrainingError


def _accuracy(head, part, k):
    mine = part.targets == k
    return float((head(part.features[mine]).argmax(1) == k).double().mean())


def _balanced_weights(targets):
    counts = targets.bincount()
    return 1 / (counts[targets].double() * len(counts))


def test_crt_finds_the_class_balanced_optimum(features, head, best_linear):
    decay = 2e-2
    fitted = CRT(weight_decay=decay, least_steps=500, lr=0.3).fit(features, head, seed=3)
    true = best_linear(features.train, _balanced_weights(features.train.targets), decay)
    plain = best_linear(features.train, torch.full((len(features.train),), 1 / len(features.train)), decay)
    assert (plain.weight - true.weight).abs().max() > 0.2  # balancing changes the answer
    torch.testing.assert_close(fitted.weight.double(), true.weight.data, atol=0.04, rtol=0)
    torch.testing.assert_close(fitted.bias.double(), true.bias.data, atol=0.04, rtol=0)


def test_crt_separates_what_can_be_separated(head):
    def corners(counts):
        targets = torch.arange(3).repeat_interleave(torch.tensor(counts))
        noise = 0.1 * torch.randn(len(targets), 4, generator=torch.Generator().manual_seed(len(targets)))
        return FeatureSet(3 * torch.eye(4)[targets] + noise, targets)

    data = CachedFeatures.from_splits({"train": corners((400, 20, 2)), "test": corners((50, 50, 50))})
    result = retune(data, head, [CRT(least_steps=100)])
    assert result["as trained"].scores["test"].balanced_accuracy < 1
    assert result["crt"].scores["test"].balanced_accuracy == 1


def test_crt_recognises_the_rare_class_better(features, head):
    results = retune(features, head, [CRT(least_steps=200), LWS(least_steps=200)])
    rare = {name: result.scores["test"].groups["few"]["accuracy"] for name, result in results.items()}
    overall = {name: result.scores["test"].balanced_accuracy for name, result in results.items()}
    assert rare["crt"] > rare["as trained"] + 0.1
    assert rare["lws"] > rare["as trained"] + 0.05
    assert overall["crt"] > overall["as trained"]
    assert rare["crt"] == pytest.approx(_accuracy(results["crt"].head, features.reported["test"], 2))


def test_crt_starts_anew_and_is_a_layer_of_the_same_shape(features, head):
    fitted = CRT(least_steps=0, epochs=1, lr=0.0).fit(features, head, seed=1)
    assert type(fitted) is nn.Linear
    assert fitted.weight.shape == head.weight.shape and fitted.bias.shape == head.bias.shape
    assert fitted.weight.abs().max() <= 0.5 and not torch.allclose(fitted.weight, head.weight, atol=0.1)
    assert not any(p.requires_grad for p in fitted.parameters())


def test_lws_changes_nothing_but_scales(features, head):
    fitted = LWS(least_steps=100).fit(features, head)
    factor = (fitted.weight / head.weight).detach()
    assert (factor[:, 0] - 1).abs().max() > 0.05
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fitted.bias / head.bias, factor[:, 0], rtol=1e-4, atol=1e-4)


def test_lws_scales_minimise_the_balanced_loss(features, head):
    tool = LWS(weight_decay=0.0, least_steps=500, lr=0.3)
    fitted = tool.fit(features, head)
    z, y = head(features.train.features).detach().double(), features.train.targets
    weights = _balanced_weights(y)

    def loss(scale):
        return (weights * -(scale * z).log_softmax(1)[torch.arange(len(y)), y]).sum()

    scale = (fitted.weight[:, 0] / head.weight[:, 0]).detach().double().requires_grad_()
    loss(scale).backward()
    ones = torch.ones(3, dtype=torch.float64, requires_grad=True)
    loss(ones).backward()
    assert scale.grad.norm() < 0.05 * ones.grad.norm()


@pytest.mark.parametrize("tool", [CRT(least_steps=40), LWS(least_steps=40)], ids=lambda tool: tool.name)
def test_the_seed_decides_and_nothing_else_does(features, head, tool):
    before = copy.deepcopy(head.state_dict())
    first, other = tool.fit(features, head, seed=0), tool.fit(features, head, seed=1)
    assert not torch.equal(first.weight, other.weight)
    torch.manual_seed(99)
    again = tool.fit(features, head, seed=0)
    assert torch.equal(first.weight, again.weight) and torch.equal(first.bias, again.bias)
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())


def test_the_global_generator_is_left_alone(features, head):
    before = torch.get_rng_state()
    CRT(least_steps=5).fit(features, head)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_head_without_a_bias_gets_none(features, head):
    bare = nn.Linear(4, 3, bias=False)
    assert CRT(least_steps=20).fit(features, bare).bias is None
    assert LWS(least_steps=20).fit(features, bare).bias is None


def test_small_data_gets_more_epochs(features, head):
    short = CRT(least_steps=0, epochs=1).fit(features, head)
    long = CRT(least_steps=50, epochs=1).fit(features, head)
    same = CRT(least_steps=0, epochs=50).fit(features, head)
    assert not torch.equal(short.weight, long.weight)
    assert torch.equal(long.weight, same.weight)  # 366 samples are one step of an epoch


def test_mistakes_are_named(features, head):
    with pytest.raises(ConfigError, match="CRT: 'epochs' is 0"):
        CRT(epochs=0)
    with pytest.raises(ConfigError, match="'lr' must be a finite number"):
        LWS(lr=float("nan"))
    with pytest.raises(TrainingError, match=r"crt became infinite .* lower its lr"):
        CRT(lr=1e38, weight_decay=1.0, least_steps=20).fit(features, head)
    with pytest.raises(ModelError, match="Sequential cannot be tuned further"):
        CRT().fit(features, nn.Sequential(head))
