from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from relatum.errors import ModelError
from relatum.models import CifarResNet, count_parameters
from relatum.models.cifar_resnet import pad_shortcut


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_parameter_counts_are_the_published_ones(depth, millions):
    model = CifarResNet(depth, 10)
    assert round(count_parameters(model) / 1e6, 2) == millions
    weighted = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(weighted) == depth  # the depth counts layers with weights; the shortcuts have none


def test_unknown_depth_is_refused():
    with pytest.raises(ModelError, match="20, 32, 44 or 56"):
        CifarResNet(18, 10)


@pytest.mark.parametrize(("channels", "out", "stride", "size"), [(4, 8, 2, 6), (4, 4, 1, 5), (3, 6, 2, 5)])
def test_shortcut_equals_a_naive_loop(channels, out, stride, size):
    x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    small = (size + stride - 1) // stride
    expected = np.zeros((2, out, small, small))
    first = (out - channels) // 2
    for n in range(2):
        for c in range(channels):
            for i in range(small):
                for j in range(small):
                    expected[n, first + c, i, j] = x[n, c, i * stride, j * stride]
    np.testing.assert_array_equal(pad_shortcut(x, out, stride).numpy(), expected)


def test_timm_interface():
    model = CifarResNet(20, 7).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = model.forward_features(x)
    features = model.forward_head(maps, pre_logits=True)
    assert maps.shape == (2, 64, 8, 8)
    assert features.shape == (2, model.num_features) == (2, 64)
    torch.testing.assert_close(features, maps.flatten(2).mean(2))
    torch.testing.assert_close(model(x), model.get_classifier()(features))
    assert model.num_classes == model.get_classifier().out_features == 7
    assert model.get_classifier().bias is not None


def test_reset_classifier():
    model = CifarResNet(20, 7).double().eval()
    model.reset_classifier(3)
    x = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    assert model.num_classes == 3
    assert model(x).shape == (1, 3)
    assert not model.get_classifier().training
    model.reset_classifier(0)
    assert model(x).shape == (1, 64)


def test_dropout_only_in_training():
    model = CifarResNet(20, 4, drop_rate=0.9)
    maps = torch.ones(2, 64, 2, 2)
    assert (model.forward_head(maps, pre_logits=True) == 0).any()
    assert (model.eval().forward_head(maps, pre_logits=True) == 1).all()


def test_channels_last_stays_channels_last_and_gives_the_same_logits():
    model = CifarResNet(20, 5).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = model(x)
    model = model.to(memory_format=torch.channels_last)
    last = x.to(memory_format=torch.channels_last)
    assert model.forward_features(last).is_contiguous(memory_format=torch.channels_last)
    assert not model.forward_features(last).is_contiguous()
    torch.testing.assert_close(model(last), plain, atol=1e-4, rtol=1e-4)


def test_convolutions_are_kaiming_normal():
    torch.manual_seed(0)
    weight = CifarResNet(20, 5).layer3[1].conv1.weight  # 64 × 64 × 9 draws: the spread is known to about 1 %
    assert abs(weight.std().item() / (2 / (64 * 9)) ** 0.5 - 1) < 0.03
    assert abs(weight.mean().item()) < 0.002
