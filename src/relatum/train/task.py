"""The task is the seam: it turns a batch into a loss, and the loop knows nothing else about the method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from relatum.batch import Batch
from relatum.config import TrainConfig
from relatum.errors import ConfigError, suggest
from relatum.models.features import run_with_features
from relatum.models.outputs import as_logits
from relatum.objectives import Objective
from relatum.relation import Relation
from relatum.train.groups import model_groups, weight_decay_groups

StreamLoss = Literal["mean", "released"] | tuple[float, float]
# The released Balanced Softmax trainer adds both stream losses and, once more, the mean over all 2N rows.
_STREAM_WEIGHTS = {"mean": (0.5, 0.5), "released": (1.5, 1.5)}


class Task(nn.Module):
    """What the loop trains. A subclass holds `model`, answers `forward`, and may use the other hooks.

    `forward(batch)` returns a dictionary with "loss" (a scalar to differentiate) and "logits" (N, K) of the plain
    model; every further scalar entry is a named part that is averaged and logged.
    """

    model: nn.Module

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Turn a batch into {"loss", "logits", named parts}."""
        raise TypeError(f"{type(self).__name__} must define forward(batch)")

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each epoch, counted from 0."""

    def param_groups(self, config: TrainConfig) -> list[dict[str, Any]]:
        """Optimizer groups; `lr_scale` in a group multiplies the scheduled rate."""
        return model_groups(self.model, config)

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the task to notice that a run directory is used for another."""
        return {"task": type(self).__name__, "model": type(self.model).__name__, "parameters": self.deployed_parameters}

    def check_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called once, after the first backward pass and before the first step."""

    @property
    def deployed_parameters(self) -> int:
        """Parameters of the model that is shipped."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def relation_batch_matters(self) -> bool:
        """Whether the samples of a micro-batch influence each other, so that splitting it changes the mathematics."""
        return False


class ClassificationTask(Task):
    """Classify images, with or without a relation.

    Args:
        model: any module from images (N, 3, H, W) to logits (N, K).
        objective: the training loss.
        relation: the relation attached to `model`, or None.
        streams: weights of the plain and the related loss: "mean" (0.5, 0.5), "released" (1.5, 1.5), or a pair.
        relation_lr_scale: learning rate of the relation over that of the model.
        relation_weight_decay: weight decay of the relation; None means that of the model.
        frozen: modules that stay in evaluation mode while the rest trains.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        relation: Relation | None = None,
        *,
        streams: StreamLoss = "mean",
        relation_lr_scale: float = 0.1,
        relation_weight_decay: float | None = None,
        frozen: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.relation = relation
        self.stream_weights = _stream_weights(streams)
        self.relation_lr_scale = relation_lr_scale
        self.relation_weight_decay = relation_weight_decay
        self.frozen = tuple(frozen)

    def train(self, mode: bool = True) -> Self:
        """Change mode as any module, but leave the frozen ones in evaluation mode."""
        super().train(mode)
        for module in self.frozen:
            module.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss over all streams, the plain logits (N, K), and loss and accuracy of each stream."""
        features: Tensor | None = None
        if self.objective.needs_features:
            output, features = run_with_features(self.model, batch.inputs)
        else:
            output = self.model(batch.inputs)
        logits = as_logits(output)
        if self.relation is None:
            loss = self.objective(logits, batch.targets, features)
            return {"loss": loss, "logits": logits, "accuracy": _accuracy(logits, batch.targets)}
        return self._streams(self.relation, logits, batch.targets, features)

    def _streams(
        self, relation: Relation, output: Tensor, target: Tensor, features: Tensor | None
    ) -> dict[str, Tensor]:
        streams, targets = relation.streams(output), relation.stream_targets(target)
        seen = dict.fromkeys(streams) if features is None else relation.streams(features)
        losses = {name: self.objective(logits, targets[name], seen[name]) for name, logits in streams.items()}
        weights = self.stream_weights if len(streams) == 2 else dict.fromkeys(streams, 1.0)
        parts = {f"loss/{name}": loss.detach() for name, loss in losses.items()}
        parts |= {f"accuracy/{name}": _accuracy(logits, targets[name]) for name, logits in streams.items()}
        if len(streams) == 2:
            same = relation.in_related(streams["plain"]).argmax(1) == streams["related"].argmax(1)
            parts["agreement"] = same.float().mean()
        total = torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()
        logits = streams.get("plain", next(iter(streams.values())))
        return {"loss": total, "logits": logits, **parts}

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Tell the objective, which may change its weights."""
        self.objective.set_epoch(epoch, epochs)

    def param_groups(self, config: TrainConfig) -> list[dict[str, Any]]:
        """Groups of the model and, with their own rate and decay, of the relation."""
        if self.relation is None:
            return super().param_groups(config)
        decay = config.weight_decay if self.relation_weight_decay is None else self.relation_weight_decay
        related = weight_decay_groups(self.relation.module.named_parameters(), decay, config.decay_all)
        for group in related:
            group["lr_scale"] = self.relation_lr_scale
        return model_groups(self.model, config, without=self.relation.module.parameters()) + related

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the task to notice that a run directory is used for another."""
        relation = "none" if self.relation is None else repr(self.relation.spec)
        settings = {"streams": list(self.stream_weights.values()), "lr_scale": self.relation_lr_scale}
        return {**super().fingerprint(), "objective": repr(self.objective), "relation": relation, **settings}

    def check_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Prove that the relation trains: two released systems never trained theirs."""
        if self.relation is not None:
            self.relation.check_optimizer(optimizer)
            self.relation.check_gradients()

    @property
    def deployed_parameters(self) -> int:
        """Parameters of the plain model: the relation stays at home."""
        own = 0 if self.relation is None else sum(p.numel() for p in self.relation.module.parameters())
        return super().deployed_parameters - own

    @property
    def relation_batch_matters(self) -> bool:
        """True with a relation: the micro-batch is what attends to each other."""
        return self.relation is not None


def _stream_weights(streams: StreamLoss) -> dict[str, float]:
    if isinstance(streams, str) and streams not in _STREAM_WEIGHTS:
        raise ConfigError(f"unknown stream loss '{streams}'; {suggest(streams, _STREAM_WEIGHTS)}, or a pair of weights")
    plain, related = _STREAM_WEIGHTS[streams] if isinstance(streams, str) else streams
    return {"plain": plain, "related": related}


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Share of right answers; of soft targets (N, K) the largest entry counts."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.detach().argmax(1) == labels).float().mean()
