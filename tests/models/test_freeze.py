import copy

import torch
from torch import nn

from relatum import BatchFormer, ClassPrior, attach, create_model
from relatum.batch import Batch
from relatum.models.freeze import freeze_backbone
from relatum.objectives import BalancedSoftmax
from relatum.train import ClassificationTask


def test_only_the_classifier_and_the_relation_train():
    model = create_model("resnet20-cifar", 4)
    before = copy.deepcopy(model.state_dict())
    frozen = freeze_backbone(model)
    relation = attach(model, BatchFormer())
    task = ClassificationTask(model, BalancedSoftmax(ClassPrior([4, 3, 2, 1])), relation, frozen=frozen).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    batch = Batch(torch.randn(8, 3, 32, 32), torch.arange(8) % 4, torch.arange(8))
    task(batch)["loss"].backward()
    optimizer.step()
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"fc.weight", "fc.bias"}, "neither weights nor BatchNorm statistics of the backbone move"
    relation.check_gradients()


def test_frozen_modules_stay_in_evaluation_mode_and_the_rest_does_not():
    model = create_model("resnet20-cifar", 4)
    frozen = freeze_backbone(model)
    task = ClassificationTask(model, BalancedSoftmax(ClassPrior([4, 3, 2, 1])), frozen=frozen)
    task.train()
    assert model.training and model.fc.training
    assert not any(m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    plain = ClassificationTask(create_model("resnet20-cifar", 4), BalancedSoftmax(ClassPrior([4, 3, 2, 1]))).train()
    assert all(m.training for m in plain.modules())
