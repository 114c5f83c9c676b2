"""The loss over one and two streams against its float64 definition."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tiny import CLASSES, TRAIN, Net, Smooth, loaders, quiet, task

from relatum.batch import Batch
from relatum.config import TrainConfig
from relatum.errors import ConfigError, TrainingError
from relatum.objectives import BalancedSoftmax, ClassBalanced, CrossEntropy
from relatum.prior import ClassPrior
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask, Task, fit

K = len(CLASSES)
PRIOR = ClassPrior([50, 10, 2])


def _batch(n=10, soft=False):
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(K, (n,), generator=generator)
    if soft:
        targets = torch.rand(n, K, generator=generator, dtype=torch.float64).softmax(1)
    return Batch(torch.randn(n, 3, 16, 16, generator=generator), targets, torch.arange(n))


def _related(objective=None, dropout=0.0, spec=None, **options):
    torch.manual_seed(0)
    model = Smooth()
    handle = attach(model, spec or BatchFormer(heads=2, dropout=dropout), num_classes=K)
    return ClassificationTask(model, objective or CrossEntropy(), handle, **options).train()


def _reference(built, batch):
    """Softmax cross-entropy of every row, written out: (rows of plain, rows of related), each (N,)."""
    with torch.no_grad():
        logits = built.model(batch.inputs)
    targets = built.relation.targets(batch.targets)
    soft = torch.nn.functional.one_hot(targets, K).double() if targets.ndim == 1 else targets
    losses = -(soft * (logits - logits.exp().sum(1, keepdim=True).log())).sum(1)
    return losses.chunk(2)


@pytest.mark.parametrize("soft", [False, True])
def test_mean_is_the_objective_over_all_rows(soft):
    built, batch = _related(), _batch(soft=soft)
    plain, related = _reference(built, batch)
    assert not torch.allclose(plain, related)  # the streams do differ
    loss = built(batch)["loss"].detach()
    assert loss.dtype == torch.float64
    assert float(loss) == pytest.approx(float(torch.cat([plain, related]).mean()), rel=1e-12)


@pytest.mark.parametrize("objective", [BalancedSoftmax(PRIOR), ClassBalanced(PRIOR, beta=0.99)])
def test_mean_equals_the_objective_on_repeated_targets_also_when_it_weighs_classes(objective):
    built, batch = _related(objective), _batch()
    with torch.no_grad():
        whole = objective(built.model(batch.inputs), built.relation.targets(batch.targets))
    assert float(built(batch)["loss"].detach()) == pytest.approx(float(whole), rel=1e-9)


@pytest.mark.parametrize(("streams", "weights"), [("released", (1.5, 1.5)), ((0.3, 2.0), (0.3, 2.0)), ((1, 0), (1, 0))])
def test_named_and_custom_stream_weights(streams, weights):
    built, batch = _related(streams=streams), _batch()
    plain, related = _reference(built, batch)
    expected = weights[0] * float(plain.mean()) + weights[1] * float(related.mean())
    assert float(built(batch)["loss"].detach()) == pytest.approx(expected, rel=1e-12)


def test_unknown_stream_weights_are_a_config_error():
    with pytest.raises(ConfigError, match="did you mean 'released'"):
        _related(streams="relased")


def test_without_shared_classifier_there_is_one_stream():
    batch = _batch()
    built = _related(spec=BatchFormer(heads=2, dropout=0.0, shared_classifier=False), streams="released")
    output = built(batch)
    with torch.no_grad():
        logits = built.model(batch.inputs)
    assert logits.shape == (len(batch), K)
    expected = CrossEntropy()(logits, batch.targets)
    assert float(output["loss"].detach()) == pytest.approx(float(expected), rel=1e-12)
    assert set(output) == {"loss", "logits", "loss/related", "accuracy/related"}
    assert torch.equal(output["logits"], logits)


def test_without_relation_the_loss_is_the_objective():
    built, batch = task(model=Smooth()).train(), _batch()
    output = built(batch)
    assert float(output["loss"].detach()) == float(CrossEntropy()(built.model(batch.inputs), batch.targets).detach())
    expected = (built.model(batch.inputs).argmax(1) == batch.targets).double().mean()
    assert float(output["accuracy"]) == pytest.approx(float(expected))
    assert not built.relation_batch_matters


def test_accuracy_of_soft_targets_counts_the_largest_entry():
    built, batch = task(model=Smooth()).train(), _batch(soft=True)
    expected = (built.model(batch.inputs).argmax(1) == batch.targets.argmax(1)).double().mean()
    assert float(built(batch)["accuracy"]) == pytest.approx(float(expected))


def test_parts_and_plain_logits_are_returned():
    built, batch = _related(), _batch()
    output = built(batch)
    plain, related = _reference(built, batch)
    with torch.no_grad():
        both = built.relation.split(built.model(batch.inputs))
    assert set(output) == {"loss", "logits", "agreement"} | {
        f"{what}/{stream}" for what in ("loss", "accuracy") for stream in ("plain", "related")
    }
    assert float(output["loss/plain"]) == pytest.approx(float(plain.mean()), rel=1e-12)
    assert float(output["loss/related"]) == pytest.approx(float(related.mean()), rel=1e-12)
    assert not output["loss/plain"].requires_grad
    assert torch.equal(output["logits"], both[0])
    expected = (both[0].argmax(1) == both[1].argmax(1)).double().mean()
    assert float(output["agreement"]) == pytest.approx(float(expected))


def test_in_evaluation_mode_there_is_the_plain_stream_only():
    built, batch = _related().eval(), _batch()
    output = built(batch)
    assert output["logits"].shape == (len(batch), K)
    assert float(output["loss"].detach()) == pytest.approx(float(output["loss/plain"]), rel=1e-12)
    assert "loss/related" not in output


def test_no_weight_on_the_related_stream_gives_the_gradients_of_the_baseline():
    torch.manual_seed(0)
    plain = Smooth()
    model, batch = copy.deepcopy(plain), _batch()
    built = ClassificationTask(
        model, CrossEntropy(), attach(model, BatchFormer(heads=2), num_classes=K), streams=(1, 0)
    )
    CrossEntropy()(plain(batch.inputs), batch.targets).backward()
    baseline = {name: p.grad for name, p in plain.named_parameters()}

    def host_gradients(weights):
        built.zero_grad()
        built.stream_weights = dict(zip(("plain", "related"), weights, strict=True))
        torch.manual_seed(1)
        built.train()(batch)["loss"].backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if not name.startswith("relation.")}

    assert any(not torch.allclose(g, baseline[name]) for name, g in host_gradients((0.5, 0.5)).items())
    assert all(torch.allclose(g, baseline[name], rtol=1e-12, atol=1e-15) for name, g in host_gradients((1, 0)).items())


def test_no_weight_on_the_related_stream_is_refused_at_the_first_step():
    built = task(relation=True, streams=(1.0, 0.0))
    before = copy.deepcopy(built.model.fc.weight)
    with pytest.raises(TrainingError, match="only zero gradients"):
        fit(built, loaders(), TRAIN, display=quiet())
    assert torch.equal(before, built.model.fc.weight)
    assert fit(task(relation=True, streams=(0.999, 0.001)), loaders(), replace(TRAIN, max_steps=1), display=quiet())


def test_a_relation_outside_the_optimizer_is_refused_at_the_first_step():
    class Forgetful(ClassificationTask):
        def param_groups(self, config: TrainConfig):
            return super().param_groups(config)[:1]  # the host only

    torch.manual_seed(0)
    model = Net()
    built = Forgetful(model, CrossEntropy(), attach(model, BatchFormer(heads=2), num_classes=K))
    with pytest.raises(TrainingError, match="not in exactly one optimizer group"):
        fit(built, loaders(), TRAIN, display=quiet())


def test_frozen_modules_stay_in_evaluation_mode():
    model = Net()
    built = ClassificationTask(model, CrossEntropy(), frozen=[model.norm])
    assert ClassificationTask(model, CrossEntropy()).train().model.norm.training
    built.train()
    assert built.model.training
    assert not model.norm.training


def test_a_task_must_say_what_its_loss_is():
    with pytest.raises(TypeError, match=r"must define forward\(batch\)"):
        Task()(_batch())


def test_a_related_fraction_has_its_own_targets_and_agreement():
    built, batch = _related(spec=BatchFormer(dropout=0.0, heads=2, related_fraction=0.4)), _batch()
    torch.manual_seed(3)
    output = built(batch)
    torch.manual_seed(3)
    with torch.no_grad():
        plain, related = built.relation.split(built.model(batch.inputs))
    rows, entropy = built.relation.chosen, torch.nn.functional.cross_entropy
    assert 1 < len(related) == len(rows) < len(plain) and torch.equal(output["logits"], plain)
    own = entropy(related, batch.targets[rows])
    assert not torch.allclose(own, entropy(related, batch.targets[: len(rows)]))
    torch.testing.assert_close(output["loss"].detach(), 0.5 * entropy(plain, batch.targets) + 0.5 * own)
    same = plain[rows].argmax(1) == related.argmax(1)
    assert float(output["agreement"]) == pytest.approx(float(same.double().mean()))


@pytest.mark.parametrize("spec", [None, BatchFormer(heads=2, dropout=0.0), BatchFormer(heads=2, related_fraction=0.4)])
def test_features_reach_an_objective_that_needs_them(spec):
    built, batch, seen = _related(spec=spec or BatchFormer(heads=2)), _batch(), []
    if spec is None:
        built.relation.detach()
        built.relation = None

    class Looks(CrossEntropy):
        needs_features = True

        def per_sample(self, logits, targets, features=None):
            seen.append((logits, features))
            return super().per_sample(logits, targets, features)

    built.objective = Looks()
    built(batch)
    classifier = next(m for m in built.model.modules() if getattr(m, "out_features", None) == K)
    assert len(seen) == (1 if spec is None else 2)
    for logits, features in seen:
        # not through the classifier, whose hooks would relate the rows again
        torch.testing.assert_close(torch.nn.functional.linear(features, classifier.weight, classifier.bias), logits)
    assert not any(len(m._forward_pre_hooks) > 2 for m in built.model.modules()), "nothing of the look is left"


def test_an_objective_on_sigmoids_has_them_measured():
    from relatum.config import EvalConfig
    from relatum.objectives import BCE
    from relatum.prior import ClassPrior

    task, batch, prior = _related(), _batch(), ClassPrior([9, 5, 2])
    task.objective = CrossEntropy()
    assert task.evaluate(task.model, [batch], prior, EvalConfig(bootstrap=0)).sigmoid is None
    task.objective = BCE()
    assert task.evaluate(task.model, [batch], prior, EvalConfig(bootstrap=0)).sigmoid["bias"] == 0.0
