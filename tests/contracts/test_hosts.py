"""The promises about attach, detach, evaluation, gradients and the optimizer, over all kinds of hosts."""

import copy

import pytest
import torch
from hosts import CLASSES, HOSTS, assert_never_attached, settle, small_vit
from torch.nn import functional

from relatum import BatchFormer, attach, attached_relation
from relatum.models.outputs import as_logits as rows


@pytest.fixture(params=list(HOSTS), scope="module")
def host(request):
    """A model with settled BatchNorm statistics and a classifier that is not zero, and images for it."""
    torch.manual_seed(1)
    build, size = HOSTS[request.param]
    model = build()
    x = torch.randn(6, 3, size, size)
    return settle(model, x), x


@pytest.mark.filterwarnings("ignore:relation batch")
def test_detach_is_exact(host):
    model, x = copy.deepcopy(host[0]), host[1]
    never = copy.deepcopy(model)
    relation = attach(model, BatchFormer())
    # The guard against a vacuous test: attaching did change the training output and the keys.
    assert rows(model.train()(x)).shape[0] == 2 * len(x)
    assert set(model.state_dict()) != set(never.state_dict())
    model.load_state_dict(never.state_dict(), strict=False)  # undo BatchNorm updates of that pass
    assert relation.detach() is model
    assert_never_attached(model, never)
    assert torch.equal(rows(model.eval()(x)), rows(never.eval()(x)))
    assert rows(model.train()(x)).shape[0] == len(x)


def test_eval_output_is_that_of_the_plain_model_and_never_depends_on_companions(host):
    model, x = copy.deepcopy(host[0]), torch.cat([host[1]] * 6)[:33] + 0.1 * torch.randn(33, *host[1].shape[1:])
    with torch.no_grad():
        plain = rows(model(x))
        # Different kernels serve different batch sizes; 1e-6 of the logits' size is what float32 rounding leaves.
        tolerance = 1e-6 * max(1.0, float(plain.abs().max()))
        relation = attach(model, BatchFormer())
        with relation.inference():
            related = relation.split(rows(model(x)))[1]
            alone = relation.split(rows(model(x[:8])))[1]
            assert (related[:8] - alone).abs().max() > 0, "with the relation on, companions do matter"
        assert torch.equal(rows(model.eval()(x)), plain)
        for n in (1, 2, 3, 7, 16, 32):
            torch.testing.assert_close(rows(model(x[:n])), plain[:n], rtol=0, atol=tolerance)
        order = torch.randperm(33)
        torch.testing.assert_close(rows(model(x[order])), plain[order], rtol=0, atol=tolerance)


def test_eval_is_exact_to_rounding_in_float64(host):
    model, x = copy.deepcopy(host[0]).double(), host[1].double()
    attach(model, BatchFormer())
    model.eval()
    x = torch.cat([x] * 6)[:33]
    with torch.no_grad():
        together = rows(model(x))
        for n in (1, 2, 7, 16):
            torch.testing.assert_close(rows(model(x[:n])), together[:n], rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:relation batch")
def test_the_relation_is_real_on_the_related_stream_only(host):
    model, x = copy.deepcopy(host[0]), host[1]
    relation = attach(model, BatchFormer(dropout=0.0))
    # BatchNorm would couple the samples by itself; evaluation mode of all but the root leaves the relation alone.
    model.eval()
    with relation.inference():
        inputs = x.clone().requires_grad_(True)
        plain, related = relation.split(rows(model(inputs)))
        direction = torch.randn(CLASSES)
        (related[0] @ direction).backward(retain_graph=True)
        assert all(inputs.grad[j].abs().max() > 0 for j in range(1, len(x)))
        inputs.grad = None
        (plain[0] @ direction).backward()
        assert inputs.grad[0].abs().max() > 0
        assert all(torch.equal(inputs.grad[j], torch.zeros_like(x[j])) for j in range(1, len(x)))


@pytest.mark.filterwarnings("ignore:relation batch")
def test_every_relation_parameter_is_optimized_and_moves(host):
    model, x = copy.deepcopy(host[0]), host[1]
    relation = attach(model, BatchFormer())
    optimizer = torch.optim.SGD(relation.param_groups(0.1), lr=0.1)
    relation.check_optimizer(optimizer)
    before = {name: p.detach().clone() for name, p in relation.module.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad()
        logits = rows(model.train()(x))
        functional.cross_entropy(logits, relation.targets(torch.arange(6))).backward()
        relation.check_gradients()
        optimizer.step()
    still = [name for name, p in relation.module.named_parameters() if torch.equal(p, before[name])]
    assert not still, f"never moved: {still}"


def test_two_heads_get_a_relation_each():
    model = small_vit("deit_tiny_distilled_patch16_224")
    relation = attach(model, BatchFormer())
    assert relation.sites == ("head", "head_dist") and len(relation.module) == 2
    attached_relation(model).detach()
    assert len(list(model.children())) == len(list(small_vit("deit_tiny_distilled_patch16_224").children()))
