"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relatum.config import TrainConfig
from relatum.errors import ConfigError
from relatum.train.muon import build_muon

# Shares such as 0.07 are not exact in binary: 0.07 x 100 is a little more than 7 and would act a step late.
_ROUNDING = 1e-9


def build_optimizer(groups: list[dict[str, Any]], config: TrainConfig) -> torch.optim.Optimizer:
    """Make the optimizer of `config` over parameter groups that may carry `lr_scale`."""
    _check_settings(config)
    for group in groups:
        group["lr"] = config.lr * group.setdefault("lr_scale", 1.0)
    if config.optimizer == "muon":
        return build_muon(groups, config)
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": _can_fuse(groups)}
    try:
        if config.optimizer == "sgd":
            sgd = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **common)
            return in_one_layout(sgd)
        return in_one_layout(torch.optim.AdamW(groups, betas=(config.momentum, config.beta2), **common))
    except ValueError as error:  # a beta of 1, or nothing to train
        raise ConfigError(f"{config.optimizer} cannot be built: {error}; see the train settings.") from error


def _check_settings(config: TrainConfig) -> None:
    """Refuse settings that the chosen optimizer or schedule would ignore, and a schedule that ends above its peak."""
    if config.optimizer == "sgd" and config.beta2 != TrainConfig.beta2:
        raise ConfigError("train.beta2 is a setting of adamw, and sgd has none; leave it out, or use adamw.")
    if config.nesterov and (config.optimizer == "adamw" or not config.momentum):
        raise ConfigError(
            "train.nesterov needs sgd or muon with a momentum; set train.optimizer and train.momentum, or drop it."
        )
    if config.optimizer != "muon" and config.adamw_scale != TrainConfig.adamw_scale:
        raise ConfigError(
            f"train.adamw_scale is a setting of muon, and {config.optimizer} has none; leave it out, or use muon."
        )
    if config.min_lr and config.schedule not in ("cosine", "linear"):
        raise ConfigError(
            f"train.min_lr ends the schedules cosine and linear, and {config.schedule} has no such end; "
            "set --train.min-lr 0."
        )
    if config.min_lr > config.lr:
        raise ConfigError(
            f"train.min_lr {config.min_lr:g} is above the learning rate, {config.lr:g}, which would rise to it; set "
            f"--train.min-lr to less, for example {config.lr / 5:g}, or to 0."
        )


def _can_fuse(groups: list[dict[str, Any]]) -> bool | None:
    """True where torch's fused kernels for CPUs, several times as fast, take all parameters; None lets torch decide."""
    parameters = [p for group in groups for p in group["params"]]
    return all(p.device.type == "cpu" and p.is_floating_point() for p in parameters) or None


def in_one_layout(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make sure that what belongs to a parameter always lies in memory as the parameter does; return the optimizer.

    Torch's fused kernels for CPUs pair the numbers of a parameter, its gradient and its state by their place in memory,
    and do not look at strides: with weights in channels-last and a contiguous gradient, or a contiguous momentum as a
    checkpoint gives it back, they would pair the wrong ones, silently.
    """
    # Functions of this file, not closures: an optimizer that its own hooks hold would live on, with its checkpoint,
    # until the garbage collector comes by.
    optimizer.register_step_pre_hook(_lay_gradients)
    optimizer.register_load_state_dict_post_hook(_lay_states)
    return optimizer


def _lay_gradients(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                parameter.grad = _as_laid(parameter, parameter.grad)


def _lay_states(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = _as_laid(parameter, value)


def _as_laid(parameter: Tensor, values: Tensor) -> Tensor:
    """Return `values` in the memory layout of `parameter`."""
    return torch.empty_like(parameter, dtype=values.dtype, requires_grad=False).copy_(values)


def scaled_to_batch(config: TrainConfig, batch_size: int) -> TrainConfig:
    """Return `config` with the learning rate for steps of `batch_size` x accumulate images, as `lr_batch` asks."""
    if not config.lr_batch:
        return config
    return replace(config, lr=config.lr * batch_size * config.accumulate / config.lr_batch, lr_batch=0)


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The learning rate after `progress` epochs (fractional); a pure function, so nothing has to be saved."""
    if progress < config.warmup_epochs:
        share = config.warmup_start + (1 - config.warmup_start) * progress / config.warmup_epochs
        return config.lr * share
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "steps":
        passed = sum(progress + _ROUNDING >= at * config.epochs for at in config.steps)
        return config.lr * config.step_factor**passed
    length = max(config.epochs - config.warmup_epochs, 1e-9)
    share = min((progress - config.warmup_epochs) / length, 1.0)
    if config.schedule == "linear":
        return config.min_lr + (config.lr - config.min_lr) * (1 - share)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * share))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its share of the scheduled rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
