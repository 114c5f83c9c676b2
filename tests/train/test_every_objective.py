"""Every objective trains a CNN and a ViT, with labels and with soft targets, or says that it cannot."""

from __future__ import annotations

import typing

import pytest
import torch

from relatum.batch import Batch
from relatum.config import ObjectiveConfig, ObjectiveName
from relatum.errors import RelatumError
from relatum.models import create_model
from relatum.objectives import build_objective
from relatum.prior import ClassPrior
from relatum.train import ClassificationTask

K = 5
PRIOR = ClassPrior([40, 20, 10, 5, 2])
CASES = [
    *(ObjectiveConfig(name=name) for name in typing.get_args(ObjectiveName)),
    ObjectiveConfig(name="focal", activation="sigmoid"),
    *(ObjectiveConfig(name="class-balanced", base=base) for base in ("focal", "sigmoid", "sigmoid-focal")),
    ObjectiveConfig(name="influence-balanced", ib_start=0.0),
    ObjectiveConfig(name="balanced-bce", shift="log(C-1)", label_smoothing=0.1),
]
LABELS_ONLY = {"lade"}


def _step(config: ObjectiveConfig, model_name: str, targets: torch.Tensor) -> tuple[torch.Tensor, torch.nn.Module]:
    torch.manual_seed(0)
    model = create_model(model_name, K, img_size=16, head="cosine" if config.name == "ldam" else "linear")
    task = ClassificationTask(model, build_objective(config, PRIOR)).train()
    task.set_epoch(1, 2)
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    loss = task(Batch(images, targets, torch.arange(8)))["loss"]
    loss.backward()
    return loss.detach(), model


@pytest.mark.parametrize("config", CASES, ids=lambda c: f"{c.name}-{c.base}-{c.activation}-{c.ib_start}")
@pytest.mark.parametrize("model_name", ["resnet20-cifar", "vit-pico-p8"])
def test_labels(config, model_name):
    loss, model = _step(config, model_name, torch.arange(8) % K)
    assert torch.isfinite(loss) and loss > 0
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(g).all() for g in gradients)
    assert any(g.abs().sum() > 0 for g in gradients)


@pytest.mark.parametrize("config", CASES, ids=lambda c: f"{c.name}-{c.base}-{c.activation}-{c.ib_start}")
@pytest.mark.parametrize("model_name", ["resnet20-cifar", "vit-pico-p8"])
def test_soft_targets(config, model_name):
    hard = torch.nn.functional.one_hot(torch.arange(8) % K, K).float()
    mixed = 0.7 * hard + 0.3 * hard.flip(0)
    assert build_objective(config, PRIOR).accepts_soft_targets == (config.name not in LABELS_ONLY)
    if config.name in LABELS_ONLY:
        with pytest.raises(RelatumError, match="label"):
            _step(config, model_name, mixed)
        return
    loss, _ = _step(config, model_name, mixed)
    assert torch.isfinite(loss) and loss > 0
    # targets that happen to be hard give the loss of the labels
    torch.testing.assert_close(_step(config, model_name, hard)[0], _step(config, model_name, torch.arange(8) % K)[0])


def test_a_prior_of_another_length_is_named():
    model = create_model("vit-pico-p8", 7, img_size=16)
    task = ClassificationTask(model, build_objective(ObjectiveConfig(name="balanced-bce"), PRIOR))
    with pytest.raises(RelatumError, match=r"5.*7|7.*5"):
        task(Batch(torch.randn(2, 3, 16, 16), torch.tensor([0, 1]), torch.arange(2)))
