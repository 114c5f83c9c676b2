"""Loss and gradient that are not finite: no step is taken, and the place is found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from broken_steps import (
    CONFIG,
    SHORT,
    FusedNet,
    Harmful,
    failure_of,
    harmful_fit,
    manifest,
    watched_steps,
)
from tiny import Talk, assert_same_bits, loaders, newest, quiet, task

from relatum.errors import TrainingError
from relatum.models import create_model
from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, BatchFormerV2, attach
from relatum.train import ClassificationTask, fit
from relatum.train.optim import learning_rate

# -- nothing happens to the state --------------------------------------------------------------------------------------

# harm, places of the bad micro-batches, settings
_CASES = {
    "nan loss": ("nan", [(0, 3)], SHORT),
    "inf loss": ("inf", [(0, 3)], SHORT),
    "activation": ("forward", [(0, 3)], SHORT),
    "between layers": ("between", [(0, 3)], SHORT),
    "input": ("input", [(0, 3)], SHORT),
    "gradient only": ("slope", [(0, 3)], SHORT),
    "gradient only, no clipping": ("slope", [(0, 3)], replace(SHORT, clip=0.0)),
    "norm overflows": ("steep", [(0, 3)], SHORT),
    "bfloat16 activation": ("forward", [(0, 3)], replace(SHORT, precision="bfloat16")),
    "bfloat16 gradient": ("slope", [(0, 3)], replace(SHORT, precision="bfloat16")),
    "adamw, channels last": ("nan", [(0, 3)], replace(SHORT, optimizer="adamw", channels_last=True)),
    "second micro-batch": ("forward", [(0, 3)], replace(SHORT, accumulate=2)),
    "very first step": ("forward", [(0, 0)], SHORT),
}


@pytest.mark.filterwarnings("ignore:gradient accumulation")
@pytest.mark.parametrize("relation", [False, True], ids=["plain", "relation"])
@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES.keys())
def test_a_step_that_is_left_out_leaves_no_trace(case, relation):
    harm, places, config = case
    with watched_steps() as steps:
        _, built = harmful_fit(None, places, harm, replace(config, on_nonfinite="skip"), relation=relation)
    assert built.met == 2  # in the step, and when it was run again
    bad = places[0][1] // config.accumulate
    for number, (before, after) in enumerate(steps):
        changed = {name for name in after if name not in before or not torch.equal(before[name], after[name])}
        if number == bad:
            assert not changed
        else:
            assert {"model.fc.weight", "model.norm.running_mean", "ema.norm.running_mean", "rng.cpu"} <= changed
            assert any(name.startswith("optimizer.") for name in changed)
        assert all(t.double().isfinite().all() for t in after.values())
    assert len(steps) == math.ceil(5 / config.accumulate)


def test_without_the_guard_the_pass_would_have_changed_buffers(monkeypatch):
    monkeypatch.setattr("relatum.train.before.Before.put_back", lambda self: None)
    with watched_steps() as steps:
        harmful_fit(None, [(0, 3)], "forward", replace(SHORT, on_nonfinite="skip"))
    before, after = steps[3]
    assert not torch.equal(before["model.norm.running_mean"], after["model.norm.running_mean"])
    assert not torch.equal(before["rng.cpu"], after["rng.cpu"])


def test_a_buffer_that_a_module_replaces_is_put_back_too():
    class Counting(FusedNet):
        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.passes = self.passes + 1  # another tensor each time
            return super().forward(x)

    data = loaders()
    built = Harmful(data, [(0, 1), (0, 2)], "nan")
    torch.manual_seed(0)
    built.model = Counting()
    fit(built, data, replace(SHORT, on_nonfinite="skip", ema=0.0), display=quiet())
    assert built.model.passes == 3
    assert built.model.norm.num_batches_tracked == 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_is_run_again_with_the_same_random_numbers_and_buffers(monkeypatch, precision):
    """Dropout in model and relation, a drawn related stream, BatchNorm: the second time gives the same loss."""
    seen = []
    forward = Harmful.forward

    def look(self, batch):
        buffers = {name: tensor.clone() for name, tensor in self.named_buffers()}
        output = forward(self, batch)
        seen.append((self.model.fuse.harm, buffers, output["logits"].detach(), output["loss"].detach()))
        return output

    monkeypatch.setattr(Harmful, "forward", look)
    harmful_fit(None, [(0, 3)], "slope", replace(SHORT, on_nonfinite="skip", precision=precision))
    assert [harm for harm, *_ in seen] == ["", "", "", "slope", "slope", ""]
    (_, buffers, logits, loss), (_, buffers_again, logits_again, loss_again) = seen[3:5]
    assert_same_bits(buffers, buffers_again)
    assert torch.equal(logits, logits_again)
    assert torch.equal(loss, loss_again)
    assert_same_bits(buffers, seen[5][1])  # and what follows starts from there, too


# -- the place is found ------------------------------------------------------------------------------------------------

_FOUND = {
    "nan": ({"kind": "loss", "layer": "task", "tensor": "output"}, "where the loss is computed"),
    "forward": ({"kind": "forward", "layer": "model.fuse", "tensor": "output"}, "in the output of 'model.fuse'"),
    "between": ({"kind": "forward", "layer": "model", "tensor": "input of model.drop"}, "the input of model.drop"),
    "slope": (
        {"kind": "backward", "layer": "model.drop", "tensor": "output"},
        "gradient of the output of 'model.drop'",
    ),
    "steep": ({"kind": "backward"}, "first in the gradient of the"),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("harm", _FOUND)
def test_the_report_names_the_layer(tmp_path, harm, precision):
    config = replace(SHORT, precision=precision)
    with pytest.raises(TrainingError) as caught:
        harmful_fit(tmp_path, [(0, 3)], harm, config, relation=False)
    expected, words = _FOUND[harm]
    report = failure_of(tmp_path)
    assert report["first"].items() >= expected.items()
    assert words in str(caught.value)
    what = "gradient" if harm in ("slope", "steep") else "loss"
    assert (report["step"], report["batch"], report["what"], report["action"]) == (3, 3, what, "stop")
    assert report["epoch"] == pytest.approx(0.6)
    assert report["lr"] == pytest.approx(learning_rate(config, 0.6))
    (parts,) = report["parts"]
    assert parts.keys() == {"loss", "accuracy"}
    assert (parts["loss"] in ("nan", "inf")) == (what == "loss")
    assert report["samples"] == list(loaders(augment="weak", mixup=0.4, seed=3).train.epoch(0))[3].index.tolist()
    assert report["gradient_norm"] in ("nan", "inf")
    assert not list((tmp_path / "checkpoints").glob("*.safetensors"))


def test_a_bad_layer_of_the_relation_is_named(tmp_path):
    data = loaders()
    built = task(relation=True)

    def spoil(module, inputs, output):
        return output * math.nan

    built.relation.module.get_submodule("0.layers.0.norm1").register_forward_hook(spoil)
    with pytest.raises(TrainingError, match=r"first in the output of 'model\.relation\.0\.layers\.0\.norm1'"):
        fit(built, data, SHORT, out=tmp_path, display=quiet())
    (parts,) = failure_of(tmp_path)["parts"]
    assert parts["loss/related"] == "nan"
    assert math.isfinite(parts["loss/plain"])


_REAL = {
    "cifar resnet": ("resnet20-cifar", "layer2.0.conv1", None),
    "in-place activation": ("resnet18", "layer3.0.act1", BatchFormer(heads=2)),
    "transformer": ("vit-nano-p8", "blocks.2.mlp.fc1", BatchFormerV2(related_fraction=0.5)),
}


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize(("name", "layer", "spec"), _REAL.values(), ids=_REAL.keys())
def test_the_layer_is_found_in_real_models(tmp_path, name, layer, spec, kind):
    model = create_model(name, 3, **({"img_size": 16} if name.startswith("vit") else {}))
    relation = None if spec is None else attach(model, spec, num_classes=3)

    def spoil(module, inputs, output):
        if kind == "forward":
            return output * math.nan
        return output.register_hook(lambda gradient: gradient * math.inf) and None

    model.get_submodule(layer).register_forward_hook(spoil)
    with pytest.raises(TrainingError, match="not finite at step 0"):
        fit(ClassificationTask(model, CrossEntropy(), relation), loaders(), SHORT, out=tmp_path, display=quiet())
    assert failure_of(tmp_path)["first"] == {"kind": kind, "layer": f"model.{layer}", "tensor": "output"}


def test_of_two_micro_batches_the_second_is_the_bad_one(tmp_path):
    with pytest.raises(TrainingError):
        harmful_fit(tmp_path, [(0, 3)], "inf", replace(SHORT, accumulate=2), relation=False)
    report = failure_of(tmp_path)
    assert (report["step"], report["batch"]) == (1, 2)
    assert math.isfinite(report["parts"][0]["loss"])
    assert report["parts"][1]["loss"] == "inf"
    assert len(report["samples"]) == 16


def test_gradients_that_overflow_only_when_added_up(tmp_path):
    """Each micro-batch alone is finite: infinity appears in their sum."""
    built = task()
    built.forward = lambda batch: {"loss": built.model.fc.bias[0] * 3e38 * 2}  # a slope of 3e38 for each half
    with pytest.raises(TrainingError, match=r"the gradient is not finite .* gradient of the bias of 'model\.fc'"):
        fit(built, loaders(), replace(SHORT, accumulate=2), out=tmp_path, display=quiet())
    assert all(math.isfinite(part["loss"]) for part in failure_of(tmp_path)["parts"])


def test_a_batch_that_is_not_finite_is_told_from_a_bad_model(tmp_path):
    data = loaders()
    real = data.train.epoch

    def spoilt(epoch, start=0):
        for number, batch in enumerate(real(epoch, start), start):
            if number == 2:
                batch.inputs[5, 0, 3, 3] = math.nan
            yield batch

    data.train.epoch = spoilt
    with pytest.raises(TrainingError, match="the inputs of the batch are not finite"):
        fit(task(), data, SHORT, out=tmp_path, display=quiet())
    sample = list(real(0))[2].index[5].item()
    assert failure_of(tmp_path)["first"] == {"kind": "input", "layer": "inputs", "micro_batch": 0, "samples": [sample]}


def test_a_fault_that_does_not_come_again_is_said_to(tmp_path):
    shown = Talk()
    harmful_fit(tmp_path, [(0, 3)], "forward", replace(SHORT, on_nonfinite="skip"), shown, once=True)
    assert failure_of(tmp_path)["first"] == {"kind": "not repeated"}
    assert any("the fault may lie with the machine" in text for text in shown.said)


def test_a_step_that_cannot_be_run_again_still_stops_with_its_report(tmp_path):
    built = task()
    calls = []

    def forward(batch):
        calls.append(None)
        if len(calls) == 2:
            raise ValueError("only once")
        return {"loss": built.model(batch.inputs).sum() * math.nan}

    built.forward = forward
    with pytest.raises(TrainingError, match="in a layer that could not be found"):
        fit(built, loaders(), SHORT, out=tmp_path, display=quiet())
    assert failure_of(tmp_path)["first"] == {"kind": "unknown", "error": "ValueError: only once"}


# -- weights that are broken already -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_no_batch_is_left_out_for_weights_that_were_broken_before(tmp_path, policy):
    built = task()

    def spoil(module, inputs):
        module.weight.data[0, 0] = math.nan

    built.model.fc.register_forward_pre_hook(spoil)
    with pytest.raises(TrainingError, match=r"the weights 'model\.fc\.weight' were not finite before this step"):
        fit(built, loaders(), replace(SHORT, on_nonfinite=policy), out=tmp_path, display=quiet())
    assert manifest(tmp_path)["nonfinite_skipped"] == 0
    assert failure_of(tmp_path)["action"] == "stop"


def test_weights_that_are_not_finite_never_take_the_place_of_a_good_checkpoint(tmp_path):
    built = task()
    last = torch.optim.SGD.step

    def overflow(self, closure=None):
        last(self, closure)
        if built.steps == 9:  # the last step of the second epoch; its loss was finite
            built.model.fc.weight.data[0, 0] = math.inf
        built.steps += 1

    built.steps = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(TrainingError, match=r"'fc\.weight' are not finite after"),
    ):
        patch.setattr(torch.optim.SGD, "step", overflow)
        fit(built, loaders(), replace(CONFIG, eval_every=0, ema=0.0), out=tmp_path, display=quiet())
    assert built.steps == 10
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.safetensors")] == ["step-000000005.safetensors"]
    assert all(tensor.double().isfinite().all() for tensor in newest(tmp_path).values())
