"""evaluate and collect: models, loaders, modes, precision, post-hoc options."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from relatum.batch import Batch
from relatum.config import EvalConfig
from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate import adjust_logits, collect, evaluate, score, tau_normalised
from relatum.prior import ClassPrior

K = 4


class Net(nn.Module):
    """Small network whose training output differs from its evaluation output; `wrap` shapes what it returns."""

    def __init__(self, wrap=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            self.head = nn.Linear(8, K)
        self.wrap = wrap

    def forward(self, x):
        logits = self.head(self.body(x))
        return logits if self.wrap is None else self.wrap(logits)


def _images(samples=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, 3, 2, 2, generator=generator)
    return images, torch.randint(K, (samples,), generator=generator)


def _batches(images, targets, size=4):
    index = torch.arange(len(images))
    return [
        Batch(images[i : i + size], targets[i : i + size], index[i : i + size]) for i in range(0, len(images), size)
    ]


def _prior():
    return ClassPrior([300, 120, 40, 5], names=["a", "b", "c", "d"])


def test_collect_joins_all_batches_in_order():
    images, targets = _images()
    model, seen = Net(), []
    logits, labels = collect(model, _batches(images, targets), progress=seen.append)
    assert seen == [4, 4, 2]
    assert torch.equal(labels, targets)
    assert logits.dtype == torch.float32 and not logits.is_inference() and not logits.requires_grad
    assert logits.numpy() == pytest.approx(model.eval()(images).detach().numpy(), abs=1e-6)


def test_pairs_and_batches_give_the_same_scores():
    images, targets = _images()
    pairs = [(b.inputs, b.targets.tolist()) for b in _batches(images, targets)]
    one = evaluate(Net(), _batches(images, targets), _prior(), split="val")
    assert one == evaluate(Net(), pairs, _prior(), split="val")
    assert (one.split, one.samples, one.classes, one.rule, one.adjustment) == ("val", 10, K, "standard", "none")
    assert one.groups["few"]["classes"] == 1


def test_evaluation_restores_each_module_to_its_mode():
    images, targets = _images()
    model = Net().train()
    model.body[2].eval()  # frozen statistics inside a model in training
    modes = [m.training for m in model.modules()]
    assert set(modes) == {True, False}
    inside = []
    model.wrap = lambda logits: inside.append([m.training for m in model.modules()]) or logits
    evaluate(model, _batches(images, targets))
    assert all(not any(flags) for flags in inside) and len(inside) == 3
    assert [m.training for m in model.modules()] == modes


def test_evaluation_restores_the_mode_and_weights_after_an_error():
    images, targets = _images()
    model = Net(wrap=lambda logits: torch.cat([logits, logits])).train()
    weight = model.head.weight.detach().clone()
    with pytest.raises(ModelError, match=r"\(8, 4\) for 4 samples.*relation is active"):
        evaluate(model, _batches(images, targets), config=EvalConfig(tau_norm=1.0))
    assert all(m.training for m in model.modules())
    assert torch.equal(model.head.weight, weight)


def test_evaluation_leaves_running_statistics_alone():
    images, targets = _images()
    model = Net().train()
    before = model.body[2].running_mean.clone()
    evaluate(model, _batches(images, targets))
    assert torch.equal(model.body[2].running_mean, before)
    model(images)
    assert not torch.equal(model.body[2].running_mean, before)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: SimpleNamespace(logits=z),
        lambda z: (z + 1, z - 1),
        lambda z: [z * 2, z * 0],
        lambda z: (z,),
    ],
)
def test_outputs_with_heads_or_logits_are_understood(wrap):
    images, targets = _images()
    expected, _ = collect(Net(), _batches(images, targets))
    logits, _ = collect(Net(wrap), _batches(images, targets))
    assert logits.numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_bfloat16_runs_under_autocast_and_returns_float32():
    images, targets = _images()
    seen = []
    model = Net(wrap=lambda z: seen.append(z.dtype) or z)
    full, _ = collect(model, _batches(images, targets))
    low, _ = collect(model, _batches(images, targets), precision="bfloat16", channels_last=True)
    assert seen == [torch.float32] * 3 + [torch.bfloat16] * 3
    assert low.dtype == torch.float32 and not torch.equal(low, full)
    assert low.numpy() == pytest.approx(full.numpy(), abs=0.05)


def test_float32_is_kept_inside_a_surrounding_autocast():
    images, targets = _images()
    full, _ = collect(Net(), _batches(images, targets))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = collect(Net(), _batches(images, targets), device="cpu")
    assert torch.equal(inside, full)


def test_channels_last_reaches_the_model():
    images, targets = _images()
    seen = []
    model = Net()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous()))
    collect(model, [(images, targets)])
    collect(model, [(images, targets)], channels_last=True)
    assert seen == [True, False]


def test_post_hoc_options_equal_their_parts_and_are_named():
    images, targets = _images(40)
    model, prior, batches = Net(), _prior(), _batches(images, targets)
    with tau_normalised(model, 0.5):
        logits, labels = collect(model, batches)
    expected = score(
        adjust_logits(logits, prior, 1.0),
        labels,
        prior,
        rule="oltr",
        bootstrap=0,
        adjustment="tau-normalised classifier (tau 0.5) and logit adjustment (tau 1)",
    )
    config = EvalConfig(shot_rule="oltr", adjust_tau=1.0, tau_norm=0.5, bootstrap=0)
    combined = evaluate(model, batches, prior, config=config)
    assert combined == expected
    plain = evaluate(model, batches, prior)
    assert combined.nll != plain.nll
    assert evaluate(model, batches, prior, config=EvalConfig(adjust_tau=1.0)).adjustment == "logit adjustment (tau 1)"
    assert evaluate(model, batches, prior) == plain


def test_without_a_prior_there_is_no_group_and_no_adjustment():
    images, targets = _images()
    scores = evaluate(Net(), _batches(images, targets))
    assert scores.rule == "n/a" and scores.row()["Few"] is None
    with pytest.raises(ConfigError, match="ClassPrior"):
        evaluate(Net(), _batches(images, targets), config=EvalConfig(adjust_tau=1.0))


def test_scores_do_not_depend_on_the_batch_size():
    images, targets = _images(17)
    one = evaluate(Net(), _batches(images, targets, size=1), _prior())
    whole = evaluate(Net(), _batches(images, targets, size=17), _prior())
    assert one.confusion == whole.confusion
    assert one.nll == pytest.approx(whole.nll, abs=1e-6)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([], "empty"),
        ([{"x": 1}], "gave a dict"),
        ([torch.zeros(2, 3)], "gave a Tensor"),
        ([(torch.zeros(2, 12), torch.zeros(2, K))], "soft targets"),
        ([(torch.zeros(2, 12), torch.zeros(3, dtype=torch.long))], r"\(3,\)"),
        ([(torch.zeros(1, 12), torch.tensor([K]))], "label 4 is out of range"),
    ],
)
def test_loaders_that_cannot_be_scored(loader, words):
    with pytest.raises(DataError, match=words):
        evaluate(Net(), loader)


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda z: {"scores": z}, "a dict"),
        (lambda z: (), "0 unequal outputs"),
        (lambda z: z[:, :, None], r"\(N, K\)"),
        (lambda z: (z, z[:1]), "2 unequal outputs"),
        (lambda z: z[:1], "for 2 samples"),
        (lambda z: z * np.nan, "not finite for 2 of 2"),
    ],
)
def test_models_that_cannot_be_scored(wrap, words):
    with pytest.raises(ModelError, match=words):
        evaluate(Net(wrap), [(torch.ones(2, 12), torch.tensor([0, 1]))])


def test_unknown_precision_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'bfloat16'"):
        collect(Net(), [], precision="bfloat")
