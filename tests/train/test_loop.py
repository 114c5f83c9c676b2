"""The loop: it learns, accumulates, clips, averages, evaluates and records as it says."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from tiny import TRAIN, Net, SignalAt, Smooth, loaders, quiet, rows, task, weights_of

from relatum.batch import Batch
from relatum.config import EvalConfig, TrainConfig
from relatum.evaluate import evaluate
from relatum.objectives import CrossEntropy
from relatum.train import ClassificationTask, fit


def _one_batch(data, position=0, epoch=0):
    return list(data.train.epoch(epoch))[position]


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_learns_what_can_be_learnt(tmp_path, relation, optimizer):
    config = replace(TRAIN, epochs=6, optimizer=optimizer, lr={"sgd": 0.1, "adamw": 0.03}[optimizer])
    done = fit(task(relation=relation), loaders(48), config, out=tmp_path, display=quiet())
    losses = [row["loss"] for row in rows(tmp_path, kind="train")]
    assert losses[-1] < 0.6 * losses[0]
    assert done.scores["val"].top1 > 0.8
    assert (done.status, done.steps) == ("finished", 36)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    def trained(seed):
        built = task(relation=True, dropout=0.5)
        fit(built, loaders(), replace(TRAIN, seed=seed, max_steps=3), display=quiet())
        return weights_of(built.model)

    first, again, other = trained(0), trained(0), trained(1)  # the same data and initial weights: only dropout differs
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_step_is_sgd_at_the_scheduled_rate():
    data, built = loaders(), task(model=Smooth())
    expected = copy.deepcopy(built.model)
    batch = _one_batch(data)
    CrossEntropy()(expected(batch.inputs), batch.targets).backward()
    config = replace(TRAIN, max_steps=1, warmup_epochs=1.0, warmup_start=0.5, weight_decay=0.1, momentum=0.0)
    fit(built, data, config, display=quiet())
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.025 * (parameter.grad + 0.1 * parameter)
    for name, parameter in built.model.named_parameters():
        assert torch.allclose(parameter, expected.get_parameter(name), rtol=1e-12), name


def test_each_epoch_is_announced_to_the_task_before_it_begins():
    told, built = [], task()
    built.set_epoch = lambda epoch, epochs: told.append((epoch, epochs, built.training))
    fit(built, loaders(), TRAIN, display=quiet())
    assert [entry[:2] for entry in told] == [(0, 3), (1, 3), (2, 3)]
    assert all(training for *_, training in told)


@pytest.mark.parametrize(("accumulate", "parts"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_each_step_is_told_its_progress_also_after_an_interruption(tmp_path, accumulate, parts):
    config, told = replace(TRAIN, epochs=2, accumulate=accumulate), []

    def run(display):
        built = task()
        built.set_progress = lambda done: told.append(done)
        return fit(built, loaders(), config, out=tmp_path, display=display)

    assert run(SignalAt(4)).status == "interrupted"
    assert run(quiet()).status == "finished"
    assert told == pytest.approx([(epoch + part / 5) / 2 for epoch in range(2) for part in parts])


def test_nothing_is_kept_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fit(task(), loaders(), replace(TRAIN, epochs=1), display=quiet())
    assert done.path is None
    assert list(tmp_path.iterdir()) == []


# -- accumulation ------------------------------------------------------------------------------------------------------


def _gradients_of_a_fit(batch_size, accumulate, steps):
    """Gradients at the first `steps` steps of a run over 24 images in file order."""
    built, seen = task(model=Smooth()), []
    data = loaders(24, batch_size=batch_size)
    batches = [_one_batch(loaders(24, batch_size=24))]
    whole = batches[0]
    cut = [slice(at, at + batch_size) for at in range(0, 24, batch_size)]
    parts = [Batch(whole.inputs[s], whole.targets[s], whole.index[s]) for s in cut]
    data.train.epoch = lambda epoch, start=0: iter(parts[start:])
    step = torch.optim.SGD.step

    def look(self, closure=None):
        seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", look)
        done = fit(built, data, replace(TRAIN, epochs=1, lr=0.0, accumulate=accumulate), display=quiet())
    assert done.steps == len(seen) == steps
    return seen, parts, built.model


def test_two_micro_batches_have_the_gradient_of_one_batch():
    (whole,), _, _ = _gradients_of_a_fit(24, 1, 1)
    (halves,), _, _ = _gradients_of_a_fit(12, 2, 1)
    for one, two in zip(whole, halves, strict=True):
        assert one.abs().max() > 1e-6
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-15)


def test_the_last_group_of_an_epoch_may_be_smaller_and_is_scaled_by_its_own_size():
    (first, last), parts, model = _gradients_of_a_fit(8, 2, 2)  # three micro-batches: two, then one
    for batches, found in ((parts[:2], first), (parts[2:], last)):
        model.zero_grad()
        inputs = torch.cat([part.inputs for part in batches])
        CrossEntropy()(model(inputs), torch.cat([part.targets for part in batches])).backward()
        assert all(torch.allclose(p.grad, g, rtol=1e-10) for p, g in zip(model.parameters(), found, strict=True))


def test_accumulation_with_a_relation_is_warned_about_and_without_is_not(recwarn):
    fit(task(), loaders(), replace(TRAIN, accumulate=2, max_steps=1), display=quiet())
    assert not [w for w in recwarn if "accumulation" in str(w.message)]
    with pytest.warns(UserWarning, match="within micro-batches of 8, not within 16"):
        fit(task(relation=True), loaders(), replace(TRAIN, accumulate=2, max_steps=1), display=quiet())


# -- clipping, averaging, precision, layout ----------------------------------------------------------------------------


def _step_length(clip):
    built = task(model=Smooth())
    before = weights_of(built.model)
    config = replace(TRAIN, max_steps=1, lr=1.0, momentum=0.0, weight_decay=0.0, clip=clip)
    fit(built, loaders(), config, display=quiet())
    return math.sqrt(sum(float((p - before[n]).square().sum()) for n, p in weights_of(built.model).items()))


def test_clipping_limits_the_step_and_is_off_by_default():
    free = _step_length(0.0)
    assert free > 0.02
    assert _step_length(0.02) == pytest.approx(0.02, rel=1e-3)
    assert _step_length(100.0) == pytest.approx(free, rel=1e-12)


def test_clipping_looks_at_what_is_trained_only(monkeypatch):
    class HeadOnly(ClassificationTask):
        def param_groups(self, config: TrainConfig):
            return [{"params": list(self.model.fc.parameters()), "weight_decay": 0.0}]

    torch.manual_seed(0)
    built, norms = HeadOnly(Smooth(), CrossEntropy()), []
    frozen = built.model.conv.weight.detach().clone()

    def look(self, closure=None):
        norms.append(float(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]).norm()))

    monkeypatch.setattr(torch.optim.SGD, "step", look)
    fit(built, loaders(), replace(TRAIN, epochs=1, clip=1e-3), display=quiet())
    # The gradients of the rest are never cleared and grow: counted in, they would shrink each step more.
    assert norms == pytest.approx([1e-3] * 5, rel=1e-3)
    assert torch.equal(frozen, built.model.conv.weight)


@pytest.mark.parametrize("decay", [0.5, 0.9999])  # the second is made for far more than these 15 steps
def test_the_averaged_model_is_what_is_evaluated(tmp_path, decay):
    data, seen = loaders(), []
    built = task()
    start = weights_of(built.model)
    step = torch.optim.SGD.step

    def look(self, closure=None):
        result = step(self, closure)
        seen.append(weights_of(built.model))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", look)
        done = fit(built, data, replace(TRAIN, ema=decay, lr=0.5), out=tmp_path, display=quiet())
    average = {name: tensor.double() for name, tensor in start.items()}
    for number, weights in enumerate(seen):
        keep = min(decay, number / (10 + number))
        for name, tensor in weights.items():
            average[name] = (
                keep * average[name] + (1 - keep) * tensor.double() if tensor.is_floating_point() else tensor
            )
    model = Net()
    model.load_state_dict({name: tensor.to(start[name].dtype) for name, tensor in average.items()})
    expected = evaluate(model, data.evals["val"], data.prior, config=EvalConfig(bootstrap=0))
    last = evaluate(built.model, data.evals["val"], data.prior, config=EvalConfig(bootstrap=0))
    assert done.scores["val"].nll == pytest.approx(expected.nll, rel=1e-4)
    assert done.scores["val"].nll != pytest.approx(last.nll, rel=1e-2)


@pytest.mark.parametrize("relation", [False, True])
def test_bfloat16_trains_close_to_float32_and_says_so(tmp_path, relation):
    def run(precision):
        dtypes = []
        built = task(relation=relation)
        built.model.fc.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
        config = replace(TRAIN, precision=precision, lr=0.1)
        done = fit(built, loaders(), config, out=tmp_path / precision, display=quiet())
        return done.scores["val"], set(dtypes), built

    exact, kinds, _ = run("float32")
    rough, rough_kinds, built = run("bfloat16")
    assert (kinds, rough_kinds) == ({torch.float32}, {torch.bfloat16})
    assert all(p.dtype == torch.float32 for p in built.model.parameters())
    assert rough.nll == pytest.approx(exact.nll, rel=0.2)
    assert rough.nll != exact.nll


def test_channels_last_changes_the_layout_and_hardly_the_result():
    seen = []

    def run(channels_last):
        built = task()
        built.model.register_forward_pre_hook(
            lambda module, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
        )
        done = fit(built, loaders(), replace(TRAIN, channels_last=channels_last, max_steps=3), display=quiet())
        assert all(flag == channels_last for flag in seen)
        seen.clear()
        assert built.model.conv.weight.is_contiguous(memory_format=torch.channels_last) == channels_last
        return done.scores["val"].nll

    assert run(True) == pytest.approx(run(False), rel=1e-4)


# -- when to evaluate, save and stop -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])])
def test_eval_every(tmp_path, every, epochs):
    fit(task(), loaders(), replace(TRAIN, epochs=5, eval_every=every), out=tmp_path, display=quiet())
    assert [row["epoch"] for row in rows(tmp_path, kind="eval")] == epochs


def test_the_test_split_is_left_alone_until_the_end(tmp_path):
    fit(task(), loaders(splits=("test", "val")), TRAIN, out=tmp_path, display=quiet())
    assert [(row["split"], row["epoch"]) for row in rows(tmp_path, kind="eval")] == [
        ("val", 1.0),
        ("val", 2.0),
        ("test", 3.0),
        ("val", 3.0),
    ]


def test_save_every(tmp_path, monkeypatch):
    saved = []
    from relatum.train import keeping

    real = keeping.save_checkpoint
    monkeypatch.setattr(
        keeping, "save_checkpoint", lambda folder, state, step: saved.append(step) or real(folder, state, step)
    )
    fit(task(), loaders(), replace(TRAIN, epochs=5, save_every=2), out=tmp_path, display=quiet())
    assert saved == [10, 20, 25]  # five steps an epoch


def test_max_steps_stops_within_an_epoch_without_shortening_the_schedule(tmp_path):
    done = fit(task(), loaders(), replace(TRAIN, max_steps=7), out=tmp_path, display=quiet())
    assert (done.steps, done.status) == (7, "finished")
    found = rows(tmp_path)
    assert [(row["kind"], row["epoch"], row["step"]) for row in found] == [
        ("train", 1.0, 5),
        ("eval", 1.0, 5),
        ("train", 1.4, 7),
        ("eval", 1.4, 7),
    ]
    assert found[2]["lr"] == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi * 1.2 / 3)))


def test_without_evaluation_splits_there_are_no_scores(tmp_path):
    done = fit(task(), loaders(splits=()), replace(TRAIN, epochs=1), out=tmp_path, display=quiet())
    assert done.scores == {}
    assert {row["kind"] for row in rows(tmp_path)} == {"train"}


def test_the_mode_of_the_model_survives_evaluation_in_between():
    modes, built = [], task()
    built.model.register_forward_pre_hook(lambda module, args: modes.append(module.training))
    fit(built, loaders(), replace(TRAIN, epochs=2), display=quiet())
    assert modes == [True] * 5 + [False] + [True] * 5 + [False]
