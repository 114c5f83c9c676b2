"""Schedules against numbers computed by hand; which parameter is trained at which rate and decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TRAIN, Net, loaders, quiet, task
from torch import nn

from relatum.config import TrainConfig
from relatum.errors import ConfigError
from relatum.train import fit
from relatum.train.groups import weight_decay_groups
from relatum.train.optim import build_optimizer, learning_rate, scaled_to_batch, set_learning_rate
from relatum.train.snapshot import flatten_optimizer, restore_optimizer

COSINE = TrainConfig(epochs=10, lr=0.2, min_lr=0.02, warmup_epochs=2.0, warmup_start=0.1)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.0, 0.02),  # a tenth of the peak
        (0.5, 0.2 * (0.1 + 0.9 * 0.25)),
        (1.0, 0.2 * 0.55),
        (2.0, 0.2),  # the peak, where the cosine begins
        (6.0, 0.11),  # half way between 0.2 and 0.02
        (4.0, 0.02 + 0.18 * 0.5 * (1 + math.sqrt(0.5))),  # cos(pi / 4)
        (10.0, 0.02),
        (11.0, 0.02),  # never rises again
    ],
)
def test_warm_up_and_cosine_have_the_values_computed_by_hand(progress, expected):
    assert learning_rate(COSINE, progress) == pytest.approx(expected, rel=1e-12)


def test_warm_up_starts_where_it_is_told():
    assert learning_rate(replace(COSINE, warmup_start=0.0), 0.0) == 0.0
    assert learning_rate(replace(COSINE, warmup_start=1.0), 0.7) == 0.2
    assert learning_rate(replace(COSINE, warmup_epochs=0.0), 0.0) == 0.2


@pytest.mark.parametrize(("progress", "expected"), [(1.0, 0.11), (2.0, 0.2), (6.0, 0.11), (8.0, 0.065), (12.0, 0.02)])
def test_linear_falls_evenly_from_the_peak_to_the_end(progress, expected):
    assert learning_rate(replace(COSINE, schedule="linear"), progress) == pytest.approx(expected, rel=1e-12)


def test_nesterov_equals_the_formula_and_is_for_sgd_alone():
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = build_optimizer([{"params": [weight]}], TrainConfig(lr=0.1, weight_decay=0.0, nesterov=True))
    value, velocity = 1.0, 0.0
    for gradient in (2.0, -1.0, 0.5):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        velocity = 0.9 * velocity + gradient
        value -= 0.1 * (gradient + 0.9 * velocity)
    assert weight.item() == pytest.approx(value, rel=1e-12)
    for wrong in ({"optimizer": "adamw"}, {"momentum": 0.0}):
        with pytest.raises(ConfigError, match="nesterov"):
            build_optimizer([{"params": [weight]}], TrainConfig(nesterov=True, **wrong))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "steps", "constant"])
@given(warmup=st.floats(0.5, 5.0), start=st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_rate_is_continuous_at_the_end_of_the_warm_up_and_rises_before(schedule, warmup, start):
    config = replace(COSINE, schedule=schedule, warmup_epochs=warmup, warmup_start=start)
    before, after = learning_rate(config, warmup - 1e-9), learning_rate(config, warmup)
    assert before == pytest.approx(after, rel=1e-6)
    assert learning_rate(config, 0.0) <= learning_rate(config, warmup / 2) <= after == pytest.approx(0.2, rel=1e-9)


def test_steps_fall_at_the_right_epochs():
    config = TrainConfig(epochs=200, lr=0.1, schedule="steps", steps=(0.8, 0.9), step_factor=0.01)
    assert learning_rate(config, 159.99) == 0.1
    assert learning_rate(config, 160.0) == pytest.approx(1e-3)
    assert learning_rate(config, 179.99) == pytest.approx(1e-3)
    assert learning_rate(config, 180.0) == pytest.approx(1e-5)


def test_steps_do_not_come_late_by_rounding():
    assert 0.07 * 100 > 7  # the share is not exact in binary
    config = TrainConfig(epochs=100, lr=1.0, schedule="steps", steps=(0.07,), step_factor=0.5)
    assert learning_rate(config, 6.999) == 1.0
    assert learning_rate(config, 7.0) == 0.5


def test_constant_schedule_stays():
    config = replace(COSINE, schedule="constant")
    assert learning_rate(config, 1.0) == pytest.approx(0.11)
    assert [learning_rate(config, at) for at in (2.0, 5.0, 9.99)] == [0.2] * 3


def test_decay_groups_divide_matrices_from_vectors():
    model = Net()
    (everything,) = weight_decay_groups(model.named_parameters(), 0.01, True)
    assert everything["weight_decay"] == 0.01
    assert {id(p) for p in everything["params"]} == {id(p) for p in model.parameters()}
    matrices, vectors = weight_decay_groups(model.named_parameters(), 0.01, False)
    assert {id(p) for p in matrices["params"]} == {id(model.conv.weight), id(model.fc.weight)}
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.01, 0.0)
    assert len(vectors["params"]) == 4  # conv bias, norm weight and bias, fc bias


def test_frozen_parameters_are_in_no_group_and_empty_groups_are_left_out():
    model = Net()
    model.conv.requires_grad_(False)
    held = {id(p) for group in weight_decay_groups(model.named_parameters(), 0.1, False) for p in group["params"]}
    assert id(model.fc.weight) in held
    assert id(model.conv.weight) not in held
    assert weight_decay_groups(nn.Linear(2, 2, bias=False).named_parameters(), 0.1, False)[0]["weight_decay"] == 0.1
    assert weight_decay_groups([], 0.1, True) == []


@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("relation", [True, False])
def test_every_parameter_is_in_exactly_one_group(relation, decay_all):
    built = task(relation=relation)
    groups = built.param_groups(replace(TRAIN, decay_all=decay_all))
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in built.model.parameters())


def test_relation_groups_have_their_own_rate_and_decay():
    built = task(relation=True, relation_lr_scale=0.25, relation_weight_decay=0.5)
    config = replace(TRAIN, weight_decay=0.01, decay_all=False)
    own = {id(p) for p in built.relation.module.parameters()}
    found = {
        (id(group["params"][0]) in own, group["params"][0].ndim > 1): (group["lr_scale"], group["weight_decay"])
        for group in built.param_groups(config)
    }
    assert found == {
        (False, True): (1.0, 0.01),
        (False, False): (1.0, 0.0),
        (True, True): (0.25, 0.5),
        (True, False): (0.25, 0.0),
    }
    for group in built.param_groups(config):
        assert len({id(p) in own for p in group["params"]}) == 1
    same = task(relation=True).param_groups(config)
    assert {group["weight_decay"] for group in same} == {0.01, 0.0}  # None takes that of the model


def test_rates_of_the_relation_differ_during_a_fit_step():
    built, seen = task(relation=True, relation_lr_scale=0.25, relation_weight_decay=0.5), []
    check = built.check_first_step

    def look(optimizer):
        own = {id(p) for p in built.relation.module.parameters()}
        seen.extend((id(g["params"][0]) in own, g["lr"], g["weight_decay"]) for g in optimizer.param_groups)
        check(optimizer)

    built.check_first_step = look
    fit(built, loaders(), replace(TRAIN, max_steps=1, warmup_epochs=1.0, weight_decay=0.01), display=quiet())
    assert seen == [(False, pytest.approx(0.005), 0.01), (True, pytest.approx(0.00125), 0.5)]


def test_optimizers_get_their_settings():
    groups = weight_decay_groups(Net().named_parameters(), 0.01, True)
    sgd = build_optimizer(groups, replace(TRAIN, momentum=0.8))
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.param_groups[0]["momentum"], sgd.param_groups[0]["nesterov"]) == (0.8, False)
    adam = build_optimizer(
        weight_decay_groups(Net().named_parameters(), 0.01, True),
        replace(TRAIN, optimizer="adamw", momentum=0.85, beta2=0.95),
    )
    assert isinstance(adam, torch.optim.AdamW)
    assert tuple(adam.param_groups[0]["betas"]) == (0.85, 0.95)


def test_beta2_is_refused_where_it_would_be_ignored():
    groups = weight_decay_groups(Net().named_parameters(), 0.01, True)
    assert build_optimizer(groups, replace(TRAIN, optimizer="adamw", beta2=0.95)).param_groups[0]["betas"][1] == 0.95
    with pytest.raises(ConfigError, match="beta2 is a setting of adamw"):
        build_optimizer(groups, replace(TRAIN, optimizer="sgd", beta2=0.95))


def test_a_final_rate_is_refused_above_the_peak_and_where_no_schedule_ends_there():
    groups = weight_decay_groups(Net().named_parameters(), 0.01, True)
    at_the_peak = build_optimizer(groups, replace(TRAIN, lr=0.1, min_lr=0.1, schedule="linear"))
    assert at_the_peak.param_groups[0]["lr"] == 0.1
    with pytest.raises(ConfigError, match=r"min_lr 0\.01 is above the learning rate, 0\.001.* for example 0\.0002"):
        build_optimizer(groups, replace(TRAIN, lr=0.001, min_lr=0.01))
    for schedule in ("steps", "constant"):
        with pytest.raises(ConfigError, match=f"{schedule} has no such end; set --train.min-lr 0"):
            build_optimizer(groups, replace(TRAIN, lr=0.1, min_lr=0.01, schedule=schedule))


def test_set_learning_rate_scales_each_group():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr_scale": s} for s in (1.0, 0.1)]
    optimizer = build_optimizer(groups, TRAIN)
    set_learning_rate(optimizer, 0.4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, pytest.approx(0.04)]


@pytest.mark.parametrize("groups", [[], [{"params": [nn.Parameter(torch.ones(1))]}]])
def test_an_optimizer_that_cannot_be_built_is_a_config_error(groups):
    with pytest.raises(ConfigError, match="adamw cannot be built"):
        build_optimizer(groups, replace(TRAIN, optimizer="adamw", beta2=1.0))


def test_the_rate_follows_the_images_per_step():
    config = TrainConfig(lr=1.5e-4, lr_batch=256, accumulate=4)
    scaled = scaled_to_batch(config, 128)
    assert scaled.lr == pytest.approx(1.5e-4 * 128 * 4 / 256)
    assert scaled_to_batch(scaled, 128) == scaled, "scaled once, not twice"
    assert scaled_to_batch(TrainConfig(lr=0.1, accumulate=4), 128).lr == 0.1


# -- fused kernels -----------------------------------------------------------------------------------------------------


def _reference(kind: str, p: torch.Tensor, gradients: list[torch.Tensor], lr: float, decay: float) -> torch.Tensor:
    """SGD with momentum 0.9, or AdamW with betas 0.9 and 0.999, in float64."""
    p, first, second = p.double(), torch.zeros(()), torch.zeros(())
    for number, gradient in enumerate((g.double() for g in gradients), 1):
        if kind == "sgd":
            gradient = gradient + decay * p
            first = gradient if number == 1 else 0.9 * first + gradient
            p = p - lr * first
            continue
        p = p * (1 - lr * decay)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        p = p - lr * (first / (1 - 0.9**number)) / ((second / (1 - 0.999**number)).sqrt() + 1e-8)
    return p


def _layouts(shape: tuple[int, ...], number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("gradient_layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("reloaded", [False, True])
def test_fused_steps_are_right_in_every_layout_of_memory(kind, gradient_layout, reloaded):
    start, *gradients = _layouts((8, 4, 3, 3), 1)
    parameter = nn.Parameter(start.to(memory_format=torch.channels_last))
    config = replace(TRAIN, optimizer=kind, lr=0.01, momentum=0.9, weight_decay=0.1)
    optimizer = build_optimizer([{"params": [parameter]}], config)
    assert optimizer.param_groups[0]["fused"] is True
    for gradient in gradients:
        parameter.grad = gradient.to(memory_format=gradient_layout)
        optimizer.step()
        if reloaded:  # as from a checkpoint, whose tensors are contiguous
            tensors, values = flatten_optimizer(optimizer)
            restore_optimizer(optimizer, {name: t.contiguous().clone() for name, t in tensors.items()}, values)
    expected = _reference(kind, start, gradients, 0.01, 0.1)
    assert parameter.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(parameter.detach().double(), expected, atol=1e-6, rtol=0)
    wrong = _reference(kind, start, [gradients[0], *gradients[1:][::-1]], 0.01, 0.1)
    assert (parameter.detach() - wrong).abs().max() > 1e-3, "the tolerance can tell"


def test_an_optimizer_of_an_earlier_version_goes_on_as_it_was():
    parameter = nn.Parameter(torch.ones(3))
    before = torch.optim.SGD([{"params": [parameter], "lr_scale": 1.0}], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(3)
    before.step()
    now = build_optimizer([{"params": [parameter]}], TRAIN)
    restore_optimizer(now, *flatten_optimizer(before))
    assert not now.param_groups[0]["fused"]


def test_what_no_fused_kernel_takes_is_left_to_torch():
    complex_weights = [{"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]}]
    assert not build_optimizer(complex_weights, TRAIN).param_groups[0]["fused"]
