"""Muon: which parameters it trains, how it moves them, and that a stopped run goes on in the same bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from timm.optim import muon as timms
from tiny import EVERYTHING, TRAIN, SignalAt, fit_everything, newest, task
from torch import nn

from relatum.config import RunConfig, TrainConfig
from relatum.errors import ConfigError
from relatum.models import create_model
from relatum.objectives import CrossEntropy
from relatum.recipes.pretraining_settings import pretrain_train
from relatum.train import ClassificationTask
from relatum.train.optim import build_optimizer

MUON = replace(TRAIN, optimizer="muon", lr=0.1, nesterov=True, weight_decay=0.0)


def names_by_way(task, config: TrainConfig = MUON) -> dict[bool, set[str]]:
    """Names of the parameters that AdamW (True) and Muon (False) train; one in two groups is an error."""
    names = {id(p): name for name, p in task.model.named_parameters()}
    found = [(names[id(p)], g["use_fallback"]) for g in build_optimizer(task.param_groups(config), config).param_groups
             for p in g["params"]]  # fmt: skip
    assert len(found) == len(dict(found)) == len(names)
    return {way: {name for name, fallback in found if fallback == way} for way in (True, False)}


def test_matrices_inside_are_muons_and_the_rest_is_adamws():
    ways = names_by_way(task(relation=True))
    assert ways[False] == {"conv.weight"}
    assert {"conv.bias", "norm.weight", "norm.bias", "fc.weight", "fc.bias"} < ways[True]
    assert any("relation" in name for name in ways[True])


@pytest.mark.parametrize("decay_all", [True, False])
def test_tokens_and_positions_of_a_vit_are_adamws(decay_all):
    vit = ClassificationTask(create_model("vit-nano-p8", 3, img_size=16), CrossEntropy())
    ways = names_by_way(vit, replace(MUON, decay_all=decay_all, weight_decay=0.1))
    assert {"cls_token", "pos_embed", "head.weight", "blocks.0.norm1.weight"} < ways[True]
    assert {"blocks.0.attn.qkv.weight", "blocks.5.mlp.fc2.weight", "patch_embed.proj.weight"} < ways[False]


def one_step(weight: torch.Tensor, gradient: torch.Tensor, config: TrainConfig, **group) -> torch.Tensor:
    """What one step adds to `weight`."""
    parameter = nn.Parameter(weight.clone())
    optimizer = build_optimizer([{"params": [parameter], **group}], config)
    parameter.grad = gradient.clone()
    optimizer.step()
    return parameter.detach() - weight


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("shape", [(24, 10, 3, 3), (64, 24), (16, 64)])
def test_a_step_is_nearly_the_orthogonal_factor_of_the_gradient(shape, native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    torch.manual_seed(0)
    weight, gradient = torch.randn(shape), torch.randn(shape)
    moved = one_step(weight, gradient, replace(MUON, momentum=0.9), use_fallback=False).double().flatten(1)
    left, _, right = torch.linalg.svd(gradient.double().flatten(1), full_matrices=False)
    expected = -MUON.lr * max(1.0, moved.shape[0] / moved.shape[1]) ** 0.5 * (left @ right)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.97
    assert 0.7 < moved.norm() / expected.norm() < 1.3
    # The gradient itself points elsewhere: its singular values differ.
    assert torch.nn.functional.cosine_similarity(-gradient.double().flatten(), expected.flatten(), dim=0) < 0.97


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_products_are_in_bfloat16_only_where_the_processor_has_them(native, dtype, monkeypatch):
    """Imitated, a product takes a hundred times as long; timm's own function is put back behind every step."""
    seen, usual = [], timms.zeropower_via_newtonschulz
    real = torch.addmm
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch, "addmm", lambda *given, **named: seen.append(given[0].dtype) or real(*given, **named))
    one_step(torch.randn(6, 4), torch.randn(6, 4), MUON, use_fallback=False)
    assert len(seen) == 9 and set(seen) == {dtype}
    monkeypatch.setattr(torch, "addmm", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one_step(torch.randn(6, 4), torch.randn(6, 4), MUON, use_fallback=False)
    assert timms.zeropower_via_newtonschulz is usual


def test_the_rest_takes_steps_of_adamw_at_its_share_of_the_rate():
    torch.manual_seed(0)
    weight, gradient = torch.randn(7), torch.randn(7)
    config = replace(MUON, adamw_scale=0.5, weight_decay=0.1, beta2=0.95, nesterov=False)
    moved = one_step(weight, gradient, config, weight_decay=0.1)
    rate = 0.1 * 0.5
    w, g = weight.double(), gradient.double()
    m, v = 0.1 * g / (1 - 0.9), 0.05 * g**2 / (1 - 0.95)
    expected = -rate * 0.1 * w - rate * m / (v.sqrt() + 1e-8)
    assert torch.allclose(moved.double(), expected, atol=1e-5)
    assert not torch.allclose(one_step(weight, gradient, replace(config, adamw_scale=0.4)), moved, atol=1e-3)


IGNORED = [
    {"optimizer": "sgd", "adamw_scale": 0.1},
    {"optimizer": "adamw", "adamw_scale": 0.1},
    {"optimizer": "muon", "nesterov": True, "momentum": 0.0},
]


@pytest.mark.parametrize("changes", IGNORED)
def test_what_would_be_ignored_is_refused(changes):
    with pytest.raises(ConfigError, match=r"adamw_scale|nesterov"):
        build_optimizer([{"params": [nn.Parameter(torch.zeros(2, 2))]}], TrainConfig(**changes))


def test_a_first_stage_keeps_its_adamw():
    config = RunConfig(train=replace(MUON, adamw_scale=0.1))
    parameter = nn.Parameter(torch.zeros(2, 2))
    assert isinstance(build_optimizer([{"params": [parameter]}], pretrain_train(config)), torch.optim.AdamW)


def test_a_stopped_run_goes_on_in_the_same_bits(tmp_path):
    config = replace(EVERYTHING, optimizer="muon", nesterov=True)
    fit_everything(tmp_path / "whole", config=config)
    assert fit_everything(tmp_path / "stopped", SignalAt(7), config=config).status == "interrupted"
    assert fit_everything(tmp_path / "stopped", config=config).status == "finished"
    whole, again = newest(tmp_path / "whole"), newest(tmp_path / "stopped")
    assert whole.keys() == again.keys() and all(torch.equal(whole[key], again[key]) for key in whole)
    fit_everything(tmp_path / "other", config=replace(config, momentum=0.5))
    assert not torch.equal(newest(tmp_path / "other")["model.conv.weight"], whole["model.conv.weight"])
