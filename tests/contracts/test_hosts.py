"""The promises about attach, detach, evaluation, gradients and the optimizer, over all kinds of hosts."""

import copy

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

from relatum import BatchFormer, attach, attached_relation, create_model
from relatum.models.outputs import as_logits as rows

CLASSES = 7


class HomeMade(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.stem(x).mean((2, 3)))


HOSTS = {
    "cifar resnet20": (lambda: create_model("resnet20-cifar", CLASSES), 32),
    "timm resnet18": (lambda: timm.create_model("resnet18", num_classes=CLASSES), 32),
    "timm vit_tiny": (lambda: small_vit("vit_tiny_patch16_224"), 32),
    "timm convnext_atto": (lambda: timm.create_model("convnext_atto", num_classes=CLASSES), 32),
    "timm efficientnet_b0": (lambda: timm.create_model("efficientnet_b0", num_classes=CLASSES), 32),
    "timm deit_tiny_distilled": (lambda: small_vit("deit_tiny_distilled_patch16_224"), 32),
    "torchvision mobilenet_v3": (lambda: torchvision.models.mobilenet_v3_small(num_classes=CLASSES), 32),
    "transformers vit": (lambda: transformers_vit(), 32),
    "home-made": (HomeMade, 16),
}


def small_vit(name):
    return timm.create_model(name, num_classes=CLASSES, img_size=32, patch_size=8, depth=2)


def transformers_vit():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


@pytest.fixture(params=list(HOSTS), scope="module")
def host(request):
    """A model with settled BatchNorm statistics and a classifier that is not zero, and images for it."""
    torch.manual_seed(1)
    build, size = HOSTS[request.param]
    model = build()
    x = torch.randn(6, 3, size, size)
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.out_features == CLASSES:
                nn.init.normal_(module.weight, std=0.1)
    return model.eval(), x


def hooks_of(model):
    return [
        (name, kind, len(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ]


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
    assert list(model.state_dict()) == list(never.state_dict())
    assert [type(m) for m in model.modules()] == [type(m) for m in never.modules()]
    assert hooks_of(model) == hooks_of(never)
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
