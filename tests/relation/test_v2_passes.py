"""Two streams under everything a training loop does to a model: odd batches, recomputation, compilation, copies."""

import copy
import warnings

import pytest
import timm
import torch
from timm.utils import ModelEmaV3
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relatum import BatchFormerV2, attach, attached_relation
from relatum.errors import ModelError

CLASSES = 5
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def vit(depth=3):
    sizes = {"img_size": 16, "patch_size": 4, "depth": depth, "embed_dim": 32, "num_heads": 4}
    torch.manual_seed(1)
    return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **sizes).train()


def attached(fraction=1.0, at="blocks.0-1", dropout=0.0, depth=3, **options):
    """(model, relation) without dropout: what differs between two passes is then the choice of samples alone."""
    model = vit(depth)
    torch.manual_seed(2)
    return model, attach(model, BatchFormerV2(at=at, dropout=dropout, related_fraction=fraction, **options))


def images(n):
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(n))


def gradients(model, relation, x, seed=3, run=None):
    """(loss, gradients) of one pass; the seed decides which samples are related, and dropout."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = functional.cross_entropy((run or model)(x), relation.targets(torch.arange(len(x)) % CLASSES))
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("fraction", "counts"), [(1.0, (8, 5, 3, 8)), (0.5, (4, 3, 2, 4))])
def test_odd_and_partial_batches(fraction, counts):
    (model, relation), never = attached(fraction), vit()
    for n, m in zip((8, 5, 3, 8), counts, strict=True):
        x = images(n)
        plain, related = relation.split(model(x))
        assert (len(plain), len(related)) == (n, m)
        assert not torch.allclose(related, relation.in_related(plain), atol=1e-4)
        torch.testing.assert_close(plain, never(x), rtol=0, atol=1e-6)
        assert len(relation.targets(torch.arange(n))) == n + m


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_one_sample_is_defined_and_warned_about(fraction):
    model, relation = attached(fraction)
    with pytest.warns(UserWarning, match="only attends to itself"):
        out = model(images(1))
    plain, related = relation.split(out)
    assert plain.shape == related.shape == (1, CLASSES) and out.isfinite().all()
    torch.testing.assert_close(plain, vit()(images(1)), rtol=0, atol=1e-6)


def test_a_large_enough_batch_is_not_warned_about():
    model, _ = attached()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(8))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_gradient_checkpointing_gives_the_same_gradients(fraction, dropout):
    model, relation = attached(fraction, at="all", dropout=dropout)
    expected = gradients(model, relation, images(6))
    random = fraction < 1 or dropout > 0
    assert not random or gradients(model, relation, images(6), seed=4)[0] != expected[0], "the draw matters"
    model.set_grad_checkpointing(True)
    ran = []
    model.blocks[0].mlp.register_forward_hook(lambda *_: ran.append(1))
    assert_same(gradients(model, relation, images(6)), expected)
    assert len(ran) == 2, "checkpointing did recompute"


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_the_whole_model_gives_the_same_gradients(reentrant):
    model, relation = attached(0.5, dropout=0.5)
    expected = gradients(model, relation, images(6))

    def checkpointed(x):
        return checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)

    assert_same(gradients(model, relation, images(6), run=checkpointed), expected)


def assert_same(mine, theirs):
    torch.testing.assert_close(mine[0], theirs[0])
    for one, other in zip(mine[1], theirs[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_recomputation_that_cannot_know_its_choice_is_refused():
    model, _ = attached(0.5, at="all")
    model.set_grad_checkpointing(True)
    loss = model(images(8)).sum() + model(images(8)).sum()
    with pytest.raises(ModelError, match="after each forward pass"):
        loss.backward()
    model(images(8)).sum().backward()


@pytest.mark.parametrize(("fraction", "batches"), [(1.0, (8,)), (0.5, (8, 8))])
def test_a_compiled_model_equals_the_eager_one(fraction, batches):
    torch._dynamo.reset()
    model, relation = attached(fraction, depth=2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    drawn = set()
    for seed, n in enumerate(batches):
        y = torch.arange(n)
        torch.manual_seed(seed)
        expected, labels = model(images(n)), relation.targets(y)
        torch.manual_seed(seed)
        out = compiled(images(n))
        assert torch.equal(relation.targets(y), labels), "the same seed chooses the same samples"
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        functional.cross_entropy(out, relation.targets(y % CLASSES)).backward()
        relation.check_gradients()
        drawn.add(tuple(labels.tolist()))
    assert len(drawn) == len(batches), "another pass chooses others"


@pytest.mark.parametrize("variant", ["paper", "stable"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_autocast_is_finite_and_in_the_precision_of_the_host(variant, fraction):
    model, relation = attached(fraction, at="all", variant=variant)
    seen = []
    model.blocks[2].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(images(6))
        expected = vit()(images(6))
    assert out.dtype == expected.dtype == torch.bfloat16
    functional.cross_entropy(out.float(), relation.targets(torch.arange(6) % CLASSES)).backward()
    assert out.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())
    assert seen == [torch.float32], "the residual stream of a timm ViT stays in float32 under autocast"
    torch.testing.assert_close(relation.split(out)[0], expected, rtol=0.05, atol=0.05)


def test_a_model_in_bfloat16_works_too():
    model = vit().bfloat16()
    attach(model, BatchFormerV2(at="all", related_fraction=0.5))
    out = model(images(6).bfloat16())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_deepcopy_relates_with_its_own_weights(fraction):
    model, relation = attached(fraction)
    twin = copy.deepcopy(model)
    handle = attached_relation(twin)
    assert handle is not relation and handle.model is twin
    torch.manual_seed(3)
    before = twin(images(6))
    with torch.no_grad():
        for p in relation.module.parameters():
            p.add_(1.0)
    torch.manual_seed(3)
    assert torch.equal(twin(images(6)), before), "the original's weights do not matter to the copy"
    with torch.no_grad():
        handle.module[0].layers[0].out.bias.add_(torch.randn(32))
    torch.manual_seed(3)
    plain, related = handle.split(twin(images(6)))
    assert torch.equal(plain, before[:6]) and not torch.allclose(related, before[6:])
    model.eval()
    assert len(twin(images(6))) == len(before), "it follows its own mode"
    handle.detach()
    assert len(twin(images(6))) == 6 and len(model.train()(images(6))) == len(before)


def test_the_average_of_weights_relates_and_follows_the_relation():
    model, relation = attached()
    average = ModelEmaV3(model, decay=0.5)
    start = [p.clone() for p in attached_relation(average.module).module.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    average.update(model)
    moved = list(attached_relation(average.module).module.parameters())
    for mine, old, theirs in zip(moved, start, relation.module.parameters(), strict=True):
        torch.testing.assert_close(mine, (old + theirs) / 2)
    x = images(6)
    assert len(average.module(x)) == 6, "an average is in evaluation mode"
    assert len(average.module.train()(x)) == 12 and len(model(x)) == 12


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_features_and_head_called_directly(fraction):
    model, relation = attached(fraction)
    never, x = vit(), images(6)
    drawn = set()
    for _ in range(6):
        out = model.forward_head(model.forward_features(x))
        plain, related = relation.split(out)
        torch.testing.assert_close(plain, never(x), rtol=0, atol=1e-6)
        assert not torch.allclose(relation.in_related(plain), related, atol=1e-4)
        drawn.add(tuple(relation.targets(torch.arange(6))[6:].tolist()))
    assert len(drawn) == 1 if fraction == 1 else len(drawn) > 1, "each pass chooses anew"
    assert len(model.eval().forward_head(model.forward_features(x))) == 6
