"""What every task with a relation shares: weights of the streams, optimizer groups, and the proof that it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from relatum.config import TrainConfig
from relatum.errors import ConfigError, suggest
from relatum.processes import world
from relatum.relation import Presence, Relation
from relatum.train.groups import model_groups, weight_decay_groups
from relatum.train.task import Task

StreamLoss = Literal["mean", "released"] | tuple[float, float]
# The released Balanced Softmax trainer adds both stream losses and, once more, the mean over all 2N rows.
_STREAM_WEIGHTS = {"mean": (0.5, 0.5), "released": (1.5, 1.5)}


class RelatedTask(Task):
    """A task whose model may carry a relation.

    Args:
        model: what is trained.
        relation: the relation attached to `model`, or None.
        streams: weights of the plain and the related loss: "mean" (0.5, 0.5), "released" (1.5, 1.5), or a pair.
        relation_lr_scale: learning rate of the relation over that of the model.
        relation_weight_decay: weight decay of the relation; None means that of the model.
        presence: when the related stream takes part; None means always.
    """

    def __init__(
        self,
        model: nn.Module,
        relation: Relation | None = None,
        *,
        streams: StreamLoss = "mean",
        relation_lr_scale: float = 0.1,
        relation_weight_decay: float | None = None,
        presence: Presence | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.relation = relation
        self.stream_weights = _stream_weights(streams)
        self.relation_lr_scale = relation_lr_scale
        self.relation_weight_decay = relation_weight_decay
        self.presence = _checked(presence or Presence(), relation)
        self._share = 1.0

    def set_progress(self, done: float) -> None:
        """Give the related stream the share of its weight that is due; without any, the relation rests."""
        self._share = self.presence.share(done)
        if self.relation is not None:
            self.relation.resting = self._share == 0

    def over_streams(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the losses of the streams; a single stream counts fully."""
        weights = self._weights_now() if len(losses) == 2 or self._resting else dict.fromkeys(losses, 1.0)
        return torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()

    def _weights_now(self) -> dict[str, float]:
        """The weights of the streams: what the related one has lost, the plain one has won."""
        related = 0.0 if self._resting else self.stream_weights["related"] * self._share
        return {"plain": self.stream_weights["plain"] + (self.stream_weights["related"] - related), "related": related}

    @property
    def _resting(self) -> bool:
        return self.relation is not None and self.relation.resting and self.training

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
        timed = {} if self.presence == Presence() else {"presence": repr(self.presence)}
        return {**super().fingerprint(), "relation": relation, **settings, **timed}

    def check_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Prove that the relation trains: two released systems never trained theirs."""
        if self.relation is not None:
            self.relation.check_optimizer(optimizer)
            if not self.relation.resting:
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

    @property
    def related_processes(self) -> int:
        """All with a gathering relation, else this one."""
        if self.relation is None:
            return 0
        return world() if self.relation.spec.gather else 1


def _checked(presence: Presence, relation: Relation | None) -> Presence:
    if presence != Presence() and (relation is None or relation.single_stream):
        raise ConfigError(f"{presence} shifts weight between two streams, but this task has one; leave presence out.")
    return presence


def _stream_weights(streams: StreamLoss) -> dict[str, float]:
    if isinstance(streams, str) and streams not in _STREAM_WEIGHTS:
        raise ConfigError(f"unknown stream loss '{streams}'; {suggest(streams, _STREAM_WEIGHTS)}, or a pair of weights")
    plain, related = _STREAM_WEIGHTS[streams] if isinstance(streams, str) else streams
    return {"plain": plain, "related": related}
