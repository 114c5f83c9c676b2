import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from relatum import BatchFormer, BatchFormerV2, attach, attached_relation, create_model
from relatum.errors import ConfigError, ModelError, TrainingError


class Net(nn.Module):
    """A home-made model: nothing of timm's interface."""

    def __init__(self, width=16, classes=5):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Tanh())
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.body(x))


def images(n=10):
    return torch.randn(n, 3, 2, 2)


def test_training_output_is_plain_then_related_and_eval_is_untouched():
    model, x = Net(), images()
    before = model(x)
    relation = attach(model, BatchFormer())
    logits = model.train()(x)
    plain, related = relation.split(logits)
    assert logits.shape == (20, 5)
    assert torch.equal(plain, before)
    assert not torch.allclose(related, before)
    assert torch.equal(model.eval()(x), before)


def test_related_rows_are_the_classifier_on_related_features():
    model, x = Net(), images()
    relation = attach(model, BatchFormer(dropout=0.0))
    _, related = relation.split(model.train()(x))
    expected = model.out.weight @ relation.module[0](model.body(x)).T + model.out.bias[:, None]
    torch.testing.assert_close(related, expected.T, rtol=1e-5, atol=1e-5)


def test_targets_follow_the_mode_of_the_model():
    model, y = Net(), torch.arange(10) % 5
    relation = attach(model, BatchFormer())
    assert relation.targets(y).shape == (20,)
    model.eval()
    assert relation.targets(y) is y
    relation.detach()
    assert relation.targets(y) is y


def test_without_shared_classifier_related_features_replace_the_plain_ones():
    model, x = Net(), images()
    before = model.eval()(x)
    relation = attach(model, BatchFormer(shared_classifier=False))
    out = model.train()(x)
    assert out.shape == before.shape and not torch.allclose(out, before)
    assert list(relation.streams(out)) == ["related"]
    assert relation.targets(torch.arange(10)).shape == (10,)
    with pytest.raises(ModelError, match="one stream"):
        relation.split(out)
    assert torch.equal(model.eval()(x), before)


def test_mini_batch_inference_is_on_only_inside_its_block():
    model, x = Net().eval(), images()
    relation = attach(model, BatchFormer())
    quiet = model(x)
    with relation.inference():
        first, second = model(x), model(x)
        assert relation.targets(torch.arange(10)).shape == (20,)
    assert first.shape == (20, 5) and torch.equal(first, second), "dropout is off in evaluation mode"
    assert torch.equal(model(x), quiet)
    with pytest.raises(RuntimeError), relation.inference():
        raise RuntimeError
    assert model(x).shape == (10, 5), "an exception leaves the block too"


def test_param_groups_hold_everything_once_and_an_optimizer_with_them_passes_the_check():
    model = Net()
    relation = attach(model, BatchFormer())
    host, related = relation.param_groups(0.1, lr_scale=0.1, weight_decay=0.5)
    held = [id(p) for group in (host, related) for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert related["lr"] == pytest.approx(0.01) and related["weight_decay"] == 0.5
    relation.check_optimizer(torch.optim.SGD([host, related], lr=0.1))
    assert "weight_decay" not in relation.param_groups(0.1)[1]


def test_a_relation_left_out_of_the_optimizer_is_noticed():
    model = Net()
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1)
    relation = attach(model, BatchFormer())
    with pytest.raises(TrainingError, match="optimizer group"):
        relation.check_optimizer(forgotten)
    next(relation.module.parameters()).requires_grad_(False)
    with pytest.raises(TrainingError, match="frozen"):
        relation.check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_loss_on_the_plain_stream_alone_is_noticed():
    model, x = Net(), images()
    relation = attach(model, BatchFormer())
    relation.split(model(x))[0].sum().backward()
    with pytest.raises(TrainingError, match="only zero gradients"):
        relation.check_gradients()
    model.zero_grad(set_to_none=True)
    with pytest.raises(TrainingError, match="got no gradient"):
        relation.check_gradients()
    functional.cross_entropy(model(x), relation.targets(torch.arange(10) % 5)).backward()
    relation.check_gradients()


def test_a_classifier_that_starts_at_zero_is_no_failure():
    model, x = Net(), images()
    nn.init.zeros_(model.out.weight)
    relation = attach(model, BatchFormer())
    functional.cross_entropy(model(x), relation.targets(torch.arange(10) % 5)).backward()
    assert not any(p.grad.any() for p in relation.module.parameters())
    relation.check_gradients()


def test_a_deepcopy_is_attached_to_itself():
    model, x = Net(), images()
    attach(model, BatchFormer())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1.0)
    model.eval()
    assert twin.train()(x).shape == (20, 5), "the copy follows its own mode, not that of the original"
    handle = attached_relation(twin)
    assert handle is not None and handle.model is twin
    handle.detach()
    assert attached_relation(twin) is None and twin.train()(x).shape == (10, 5)
    assert attached_relation(model) is not None and model.train()(x).shape == (20, 5)


def test_every_check_runs_before_any_change():
    model = Net(width=10)
    keys = list(model.state_dict())
    for spec, error in [
        (BatchFormer(heads=4), ConfigError),
        (BatchFormer(at="nowhere"), ModelError),
        ("x", ConfigError),
    ]:
        with pytest.raises(error):
            attach(model, spec)
        assert list(model.state_dict()) == keys and attached_relation(model) is None


def test_attaching_twice_is_refused_and_after_detach_it_works_again():
    model = Net()
    relation = attach(model, BatchFormer())
    with pytest.raises(ModelError, match="already"):
        attach(model, BatchFormer())
    assert relation.detach() is model
    assert repr(relation) == "Relation(detached)"
    attach(model, BatchFormer(layers=2))


def test_a_named_site_is_used():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 6), nn.Linear(6, 5))
    relation = attach(model, BatchFormer(at="3"))
    assert relation.sites == ("3",) and "parameters=" in repr(relation)
    assert model(images()).shape == (20, 5)


def test_small_relation_batches_are_warned_about_once():
    model = Net()
    attach(model, BatchFormer())
    with pytest.warns(UserWarning, match="only attends to itself"):
        assert model(images(1)).shape == (2, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(2))


def test_eight_samples_are_not_warned_about():
    model = Net()
    attach(model, BatchFormer())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(8))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_batchnorm_normalises_each_stream_alone_and_remembers_the_plain_one(fraction):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 5)))
    never = copy.deepcopy(model)
    relation = attach(model, BatchFormer(at="2", dropout=0.0, related_fraction=fraction))
    x = torch.randn(10, 3, 2, 2)
    plain, related = relation.split(model(x))
    assert torch.equal(plain, never(x))
    assert not torch.equal(relation.in_related(plain), related)
    assert torch.equal(model[2][0].running_mean, never[2][0].running_mean)
    features = relation.module[0](never[1](x.flatten(1)), relation.chosen)
    expected = never[2][1]((features - features.mean(0)) / (features.var(0, unbiased=False) + 1e-5).sqrt())
    torch.testing.assert_close(related, expected)


def test_batchnorms_of_a_network_after_the_first_site_keep_plain_statistics():
    model = create_model("resnet20-cifar", 5)
    never = copy.deepcopy(model)
    relation = attach(model, BatchFormerV2(at="layer1.0"))
    x = torch.randn(9, 3, 16, 16)
    assert torch.equal(relation.split(model(x))[0], never(x))
    state = never.state_dict()
    assert all(torch.equal(t, state[k]) for k, t in model.state_dict().items() if not k.startswith("relation."))


def test_unpooled_features_are_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 5))
    attach(model, BatchFormer())
    with pytest.raises(ModelError, match="pooled"):
        model(images())


def test_it_follows_the_model_to_another_precision_and_registers_there():
    model = Net().double()
    relation = attach(model, BatchFormer())
    assert all(p.dtype == torch.float64 for p in relation.module.parameters())
    assert any(name.startswith("relation.") for name in model.state_dict())
    assert model.train()(images().double()).dtype == torch.float64


def test_autocast_keeps_both_streams_in_one_tensor():
    model = Net()
    attach(model, BatchFormer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images()).shape == (20, 5)


@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_graph_breaks(training):
    model, x = Net(), images()
    attach(model, BatchFormer(dropout=0.0))
    model.train(training)
    expected = model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)


def test_words_and_masks_that_would_be_ignored_are_refused():
    model = Net()
    relation = attach(model, BatchFormer())
    with pytest.raises(ConfigError, match="not 'relatd'"), relation.inference("relatd"):
        pass
    with pytest.raises(ModelError, match="BatchFormerV2"), relation.padding(torch.zeros(4, 1, dtype=torch.bool)):
        pass
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(ModelError, match="takes no argument 'mask'"):
        attach(encoder, BatchFormerV2(at="layers.0", padding="mask"))
    assert attached_relation(encoder) is None
