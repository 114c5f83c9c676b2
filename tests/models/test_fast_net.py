"""FastNet: shapes, its start as the identity, a float64 reference, timm's interface."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relatum
from relatum.errors import ModelError
from relatum.models.fast_net import FAST_NETS, ConvNorm, FastNet


def _images(n=4, side=32):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", sorted(FAST_NETS))
def test_is_built_by_name_with_timms_interface(name):
    model = relatum.create_model(name, 7, img_size=32).eval()
    widths, experts = FAST_NETS[name]
    width = widths[-1] * experts
    maps = model.forward_features(_images())
    features = model.forward_head(maps, pre_logits=True)
    assert maps.shape == (4, width, 3, 3)
    assert features.shape == (4, model.num_features) == (4, width)
    torch.testing.assert_close(model(_images()), model.get_classifier()(features))
    model.reset_classifier(0)
    torch.testing.assert_close(model(_images()), features)


def _reference(model, x):
    """The forward pass once more from the parameters, in evaluation mode."""
    x = F.conv2d(x, model.stem.weight, model.stem.bias).clamp_min(0)

    def layer(x, unit, halve):
        x = F.conv2d(x, unit.conv.weight, padding=1)
        if halve:
            x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
            x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).amax((3, 5))
        norm = unit.norm
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        x = (x - norm.running_mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
        return x.clamp_min(0)

    def run(x, stage):
        x = layer(x, stage.down, True)
        return x + layer(layer(x, stage.conv1, False), stage.conv2, False)

    x = run(run(x, model.stages[0]), model.stages[1])
    tops = [model.stages[2]] if model.experts == 1 else list(model.stages[2])
    answers = []
    for top, weight in zip(tops, model.fc.weight.chunk(len(tops), 1), strict=True):
        answers.append(run(x, top).flatten(2).max(2).values * 0.25 @ weight.T)
    return torch.stack(answers).mean(0)


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("side", [9, 16, 25, 32])
def test_equals_a_float64_reference_at_any_size(side, experts):
    torch.manual_seed(0)
    model = FastNet((8, 12, 16), 5, experts=experts).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for values in (module.weight, module.bias, module.running_mean):
                    values.add_(0.3 * torch.randn_like(values))
                module.running_var.mul_(1 + torch.rand_like(module.running_var))
    x = _images(side=side).double()
    torch.testing.assert_close(model.eval()(x), _reference(model, x), rtol=1e-10, atol=1e-12)


def test_convolutions_start_as_the_identity():
    unit = ConvNorm(6, 10)
    x = torch.randn(2, 6, 5, 5)
    torch.testing.assert_close(unit.conv(x)[:, :6], x)
    assert not torch.allclose(unit.conv(x)[:, 6:], torch.zeros(()))


def test_whitening_changes_the_stem_only_and_freezes_it():
    torch.manual_seed(0)
    model = FastNet((8, 12, 16), 5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.whiten(_images(16))
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["stem.weight", "stem.bias"]
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == changed


def test_too_small_images_are_refused_with_the_cure():
    with pytest.raises(ModelError, match="9 pixels or more, not 8 x 8"):
        FastNet((8, 12, 16), 5)(_images(side=8))


def test_batchformer_attaches_and_leaves_no_trace():
    model = relatum.create_model("fastnet-s", 5).eval()
    plain = model(_images())
    relation = relatum.attach(model, relatum.BatchFormer())
    assert model.train()(_images()).shape == (8, 5)
    relation.detach()
    fresh = relatum.create_model("fastnet-s", 5)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(_images()), fresh.eval()(_images()))
    assert plain.shape == (4, 5)
