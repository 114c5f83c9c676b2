"""The task of classification: logits against targets, one loss for each stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from torch import Tensor, nn

from relatum.batch import Batch
from relatum.config import EvalConfig
from relatum.evaluate import Scores, evaluate
from relatum.models.experts import ExpertLinear, one_by_one, vote
from relatum.models.features import run_with_features
from relatum.models.outputs import as_logits
from relatum.objectives import Objective
from relatum.prior import ClassPrior
from relatum.relation import Presence, Relation
from relatum.train.related import RelatedTask, StreamLoss


class ClassificationTask(RelatedTask):
    """Classify images, with or without a relation.

    Args:
        model: any module from images (N, 3, H, W) to logits (N, K). With an `ExpertLinear` as classifier it gives those
            of its experts while training, (N, E, K), and each of them has its own loss.
        objective: the training loss.
        relation: the relation attached to `model`, or None.
        streams: weights of the plain and the related loss: "mean" (0.5, 0.5), "released" (1.5, 1.5), or a pair.
        relation_lr_scale: learning rate of the relation over that of the model.
        relation_weight_decay: weight decay of the relation; None means that of the model.
        presence: when the related stream takes part; None means always.
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
        presence: Presence | None = None,
        frozen: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__(
            model,
            relation,
            streams=streams,
            relation_lr_scale=relation_lr_scale,
            relation_weight_decay=relation_weight_decay,
            presence=presence,
        )
        self.objective = objective
        self.frozen = tuple(frozen)
        self._has_experts = any(isinstance(part, ExpertLinear) for part in model.modules())

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
            loss = self._loss(logits, batch.targets, features)
            logits = vote(logits)
            return {"loss": loss, "logits": logits, "accuracy": _accuracy(logits, batch.targets)}
        return self._streams(self.relation, logits, batch.targets, features)

    def _streams(
        self, relation: Relation, output: Tensor, target: Tensor, features: Tensor | None
    ) -> dict[str, Tensor]:
        streams, targets = relation.streams(output), relation.stream_targets(target)
        seen = dict.fromkeys(streams) if features is None else relation.streams(features)
        losses = {name: self._loss(logits, targets[name], seen[name]) for name, logits in streams.items()}
        streams = {name: vote(logits) for name, logits in streams.items()}
        parts = {f"loss/{name}": loss.detach() for name, loss in losses.items()}
        parts |= {f"accuracy/{name}": _accuracy(logits, targets[name]) for name, logits in streams.items()}
        if len(streams) == 2:
            same = relation.in_related(streams["plain"]).argmax(1) == streams["related"].argmax(1)
            parts["agreement"] = same.float().mean()
        logits = streams.get("plain", next(iter(streams.values())))
        return {"loss": self.over_streams(losses), "logits": logits, **parts}

    def _loss(self, logits: Tensor, targets: Tensor, features: Tensor | None) -> Tensor:
        # Three dimensions of another model, such as one answer for each token, are a mistake that the objective names.
        if self._has_experts:
            return self.objective(*one_by_one(logits, targets, features))
        return self.objective(logits, targets, features)

    def evaluate(
        self, model: nn.Module, loader: Iterable[Batch], prior: ClassPrior, config: EvalConfig, **how: Any
    ) -> Scores:
        """Score the classifier; an objective on sigmoids also has its sigmoids measured."""
        return evaluate(model, loader, prior, config=config, sigmoid_bias=self.objective.sigmoid_bias, **how)

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Tell the objective, which may change its weights."""
        self.objective.set_epoch(epoch, epochs)

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the task to notice that a run directory is used for another."""
        return {**super().fingerprint(), "objective": repr(self.objective)}


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """Share of right answers; of soft targets (N, K) the largest entry counts."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.detach().argmax(1) == labels).float().mean()
