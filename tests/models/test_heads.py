from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from relatum.errors import ModelError
from relatum.models import CifarResNet, CosineClassifier, replace_classifier


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.5, 60))
def test_cosine_classifier_equals_its_definition_and_ignores_norms(seed, scale):
    rng = np.random.default_rng(seed)
    features, rows = rng.normal(size=(5, 6)), rng.normal(size=(4, 6))
    head = CosineClassifier(6, 4, scale).double()
    head.weight.data = torch.from_numpy(rows)
    expected = np.empty((5, 4))
    for n in range(5):
        for k in range(4):
            norms = np.sqrt((features[n] ** 2).sum()) * np.sqrt((rows[k] ** 2).sum())
            expected[n, k] = scale * (features[n] * rows[k]).sum() / norms
    np.testing.assert_allclose(head(torch.from_numpy(features)).detach(), expected, rtol=1e-12, atol=1e-12)
    shuffled = features[:, ::-1].copy()
    assert not np.allclose(head(torch.from_numpy(shuffled)).detach(), expected)  # direction matters …
    lengths = rng.uniform(0.1, 50, size=(5, 1))
    head.weight.data *= torch.from_numpy(rng.uniform(0.1, 50, size=(4, 1)))
    np.testing.assert_allclose(head(torch.from_numpy(features * lengths)).detach(), expected, rtol=1e-10, atol=1e-10)


def test_zero_features_have_no_direction():
    out = CosineClassifier(3, 2)(torch.zeros(1, 3))
    assert torch.equal(out, torch.zeros(1, 2))


def test_no_bias_and_positive_scale():
    assert [name for name, _ in CosineClassifier(3, 2).named_parameters()] == ["weight"]
    with pytest.raises(ModelError, match="positive"):
        CosineClassifier(3, 2, scale=0.0)


def test_replace_keeps_the_backbone_and_changes_the_head():
    model = CifarResNet(20, 10).double().eval()
    features = torch.randn(2, 64, 1, 1, dtype=torch.float64)
    before = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("fc.")}
    returned = replace_classifier(model, "cosine", 4, scale=2.0)
    assert returned is model
    assert isinstance(model.fc, CosineClassifier)
    assert model.num_classes == 4
    assert not model.fc.training
    logits = model.forward_head(features)
    assert logits.shape == (2, 4)
    assert logits.dtype == torch.float64
    assert logits.abs().max() <= 2.0
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    replace_classifier(model, "linear", 6)
    assert isinstance(model.fc, nn.Linear)
    assert model.fc.out_features == model.num_classes == 6


def test_replace_both_heads_of_a_distilled_model():
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=5, img_size=32, depth=1)
    replace_classifier(model, "cosine", 3)
    assert all(isinstance(head, CosineClassifier) for head in model.get_classifier())
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_replace_refuses_what_it_cannot_do():
    with pytest.raises(ModelError, match="inside the model"):
        replace_classifier(nn.Linear(3, 2), "cosine", 2)
    with pytest.raises(ModelError, match="did you mean 'cosine'"):
        replace_classifier(nn.Sequential(nn.Linear(3, 2)), "cosin", 2)
