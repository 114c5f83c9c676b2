"""The promises of two streams inside the network, over all kinds of hosts, places and variants."""

import copy

import pytest
import torch
from hosts import CLASSES, LAYERED_HOSTS, assert_never_attached, calls, settle
from torch import nn

from relatum import BatchFormerV2, attach
from relatum.models.blocks import find_blocks
from relatum.models.outputs import as_logits as rows

SAMPLES = 5
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


@pytest.fixture(params=list(LAYERED_HOSTS), scope="module")
def host(request):
    """The name of a host, the host with its own dropout off, and images for it."""
    torch.manual_seed(1)
    build, size = LAYERED_HOSTS[request.param]
    x = torch.randn(SAMPLES, 3, size, size)
    return request.param, settle(build(), x), x


@pytest.fixture(params=[(place, variant) for place in ("all", "last") for variant in ("paper", "stable")], ids="-".join)
def attached(request, host):
    """(relation, the model in training mode, its twin that was never attached, images)."""
    (place, variant), (name, original, x) = request.param, host
    torch.manual_seed(2)
    at = "layer4" if (name, place) == ("timm resnet18", "all") else place
    batch_dim = 1 if name.endswith("sequence first") else 0
    model, never = copy.deepcopy(original), copy.deepcopy(original)
    relation = attach(model, BatchFormerV2(at=at, variant=variant, dropout=0.0, batch_dim=batch_dim))
    return relation, model.train(), never.train(), x


def freeze_batchnorm(model):
    """BatchNorm in training mode couples the samples by itself; without it the relation alone does."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def test_plain_stream_is_the_unattached_model_and_related_stream_is_not(attached):
    relation, model, never, x = attached
    expected = rows(never(x))
    plain, related = relation.split(rows(model(x)))
    assert plain.shape == related.shape == (SAMPLES, CLASSES)
    assert (related - expected).abs().max() > 1e-4
    torch.testing.assert_close(plain, expected, rtol=0, atol=1e-6)
    related.square().sum().backward()
    assert all(p.grad.any() for p in relation.module.parameters()), "every parameter of the relation learns"


def test_samples_meet_in_the_related_stream_only(attached):
    relation, model, _, x = attached
    freeze_batchnorm(model)
    inputs = x.clone().requires_grad_(True)
    plain, related = relation.split(rows(model(inputs)))
    direction = torch.randn(CLASSES)
    (met,) = torch.autograd.grad(related[0] @ direction, inputs, retain_graph=True)
    assert all(met[j].abs().max() > 0 for j in range(SAMPLES))
    (alone,) = torch.autograd.grad(plain[0] @ direction, inputs)
    assert alone[0].abs().max() > 0
    assert not alone[1:].any(), "exactly zero"


def test_rows_are_doubled_once_however_many_sites(attached):
    relation, model, never, x = attached
    before, after = calls(never, x), calls(model, x)
    assert [name for name, _ in after] == [name for name, _ in before], "every module runs as often as without us"
    first = relation.sites[0]
    begun = 1 + max(k for k, (name, _) in enumerate(after) if f"{name}.".startswith(f"{first}."))
    ratios = [now / then for (_, now), (_, then) in zip(after, before, strict=True)]
    assert 0 < begun < len(ratios)
    assert set(ratios[:begun]) == {1.0}, "up to the first site: N samples"
    assert set(ratios[begun:]) == {2.0}, "after it: two streams, never four"


def test_evaluation_is_untouched_and_detach_is_exact(attached):
    relation, model, never, x = attached
    assert rows(model(x)).shape[0] == 2 * SAMPLES
    assert set(model.state_dict()) > set(never.state_dict())
    never(x)  # the same BatchNorm update as the model had
    expected = rows(never.eval()(x))
    assert torch.equal(rows(model.eval()(x)), expected)
    assert relation.detach() is model
    assert_never_attached(model, never)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), never.buffers(), strict=True))
    assert torch.equal(rows(model(x)), expected)
    assert torch.equal(rows(model.train()(x)), rows(never.train()(x)))


@pytest.mark.parametrize("place", ["all", "last"])
def test_the_places_are_where_one_expects_them(host, place):
    name, model, _ = host
    blocks = tuple(block for block, _ in find_blocks(model))
    batch_dim = 1 if name.endswith("sequence first") else 0
    relation = attach(copy.deepcopy(model), BatchFormerV2(at=place, batch_dim=batch_dim))
    assert len(blocks) >= 3 and len(relation.module) == len(relation.sites)
    assert relation.sites == (blocks if place == "all" else blocks[-1:])
