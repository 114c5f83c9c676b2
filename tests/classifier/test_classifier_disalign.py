"""DisAlign: the formula, its start, its fit, and that it cannot be folded."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from relatum import ClassPrior
from relatum.classifier import AlignedClassifier, DisAlign, fold, retune
from relatum.errors import ConfigError, ModelError


def _reference(aligned, features):
    h = features.double().numpy()
    own = {name: tensor.double().numpy() for name, tensor in aligned.state_dict().items()}
    z = h @ own["classifier.weight"].T + own["classifier.bias"]
    gate = 1 / (1 + np.exp(-(h @ own["gate.weight"].T + own["gate.bias"])))
    return gate * (own["scale"] * z + own["shift"]) + (1 - gate) * z


def test_it_is_the_formula(features, head):
    aligned = DisAlign(least_steps=100).fit(features, head)
    assert (aligned.scale - 1).abs().max() > 0.01 and aligned.shift.abs().max() > 0.01
    logits = aligned(features.held.features)
    np.testing.assert_allclose(logits.numpy(), _reference(aligned, features.held.features), atol=1e-4)


def test_before_it_is_fitted_it_is_the_classifier(features, head):
    aligned = AlignedClassifier(copy.deepcopy(head), torch.Generator().manual_seed(0))
    x = features.held.features
    torch.testing.assert_close(aligned(x), head(x), rtol=1e-5, atol=1e-5)
    gates = aligned.gate(x).sigmoid()
    assert gates.min() < 0.5 < gates.max()  # the gate is neither open nor shut
    with torch.no_grad():
        aligned.shift[2] += 1.0
    assert not torch.allclose(aligned(x), head(x), atol=1e-2)


def test_class_weights_are_those_of_the_paper():
    weights = DisAlign(rho=1.2).class_weights(ClassPrior([90, 9, 1]))
    raw = np.array([0.9, 0.09, 0.01]) ** -1.2
    np.testing.assert_allclose(weights.numpy(), 3 * raw / raw.sum(), rtol=1e-6)
    assert torch.equal(DisAlign(rho=0.0).class_weights(ClassPrior([90, 9, 1])), torch.ones(3))
    assert DisAlign().class_weights(ClassPrior([5, 0])).isfinite().all()


def test_fitting_lowers_the_weighted_loss_and_leaves_the_classifier(features, head):
    tool = DisAlign(least_steps=150)
    weights = tool.class_weights(features.prior)
    aligned = tool.fit(features, head)

    def loss(classifier):
        with torch.no_grad():
            return nn.functional.cross_entropy(classifier(features.train.features), features.train.targets, weights)

    assert loss(aligned) < 0.9 * loss(head)
    assert torch.equal(aligned.classifier.weight, head.weight) and aligned.classifier is not head
    results = retune(features, head, [tool])
    few = {name: result.scores["test"].groups["few"]["accuracy"] for name, result in results.items()}
    assert few["disalign"] > few["as trained"] + 0.1


def test_the_seed_decides(features, head):
    first, other = (DisAlign(least_steps=30).fit(features, head, seed=seed) for seed in (0, 1))
    again = DisAlign(least_steps=30).fit(features, head, seed=0)
    assert not torch.equal(first.gate.weight, other.gate.weight)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_it_cannot_be_folded_and_says_so(features, head):
    model = nn.Sequential(nn.Flatten(), head)
    aligned = DisAlign(least_steps=1, epochs=1).fit(features, head)
    assert not DisAlign.foldable
    with pytest.raises(
        ModelError, match=r"AlignedClassifier cannot be folded .* gate depends on the image.*set_submodu"
    ):
        fold(model, aligned)
    model.set_submodule("1", aligned)  # the cure that the message names
    assert torch.equal(model(features.held.features), aligned(features.held.features))


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="DisAlign: 'rho' is -1"):
        DisAlign(rho=-1.0)
