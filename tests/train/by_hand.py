"""A training with a relation written out in float64: streams, weights, momentum and decay, step by step."""

from __future__ import annotations

import torch
from tiny import CLASSES, Smooth

from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask


def exact_task(**options):
    """A task in float64 in which nothing is random."""
    torch.manual_seed(0)
    model = Smooth()
    relation = attach(model, BatchFormer(heads=2, dropout=0.0), num_classes=len(CLASSES))
    relation.module.double()
    return ClassificationTask(model, CrossEntropy(), relation, **options).train()


def stream_losses(built, batch):
    """Cross-entropy of the plain and the related rows, written out."""
    logits = built.model(batch.inputs)
    truth = torch.nn.functional.one_hot(batch.targets, len(CLASSES)).double().repeat(2, 1)
    losses = -(truth * (logits - logits.exp().sum(1, keepdim=True).log())).sum(1)
    return [part.mean() for part in losses.chunk(2)]


def train_by_hand(built, data, config, share_at):
    """SGD with momentum and weight decay on the weighted loss; a parameter without a gradient is not touched."""
    own = {id(p) for p in built.relation.module.parameters()}
    momentum = {}
    steps = config.epochs * len(data.train)
    for epoch in range(config.epochs):
        for number, batch in enumerate(data.train.epoch(epoch)):
            step = epoch * len(data.train) + number
            share = share_at(step / steps)
            plain, related = stream_losses(built, batch)
            built.zero_grad(set_to_none=True)
            ((1 - 0.5 * share) * plain + 0.5 * share * related).backward()
            with torch.no_grad():
                for p in built.model.parameters():
                    if id(p) in own and share == 0:
                        continue
                    gradient = p.grad + config.weight_decay * p
                    momentum[p] = config.momentum * momentum[p] + gradient if p in momentum else gradient
                    p -= config.lr * (0.1 if id(p) in own else 1.0) * momentum[p]
