"""Deferred re-weighting: learn features from all samples alike first, weigh the rare classes up at the end."""

from __future__ import annotations

from torch import Tensor

from relatum.objectives.base import Objective
from relatum.objectives.checks import require
from relatum.objectives.terms import effective_number_weights
from relatum.prior import ClassPrior

# Shares such as 0.07 are not exact in binary: 0.07 x 100 is a little more than 7 and would switch an epoch late.
_ROUNDING = 1e-9


def share_reached(start: float, epoch: float, epochs: int) -> bool:
    """Whether `epoch`, counted from 0, lies at or after the share `start` of `epochs`; a start of 1 is never."""
    return start < 1 and epoch + _ROUNDING >= start * epochs


class DeferredReweighting(Objective):
    """An objective whose class weights switch from none to effective-number weights late in training.

    The weights are set on the wrapped objective; the loop only calls `set_epoch` before each epoch, as for any
    objective. The state depends on the epoch alone, so a resumed run needs nothing saved.

    Args:
        objective: any objective without class weights of its own.
        prior: the class prior.
        start: share of the epochs after which the weights act; 1 is never.
        beta: effective-number parameter.
    """

    own_weights = True
    weights: Tensor

    def __init__(self, objective: Objective, prior: ClassPrior, start: float = 0.8, beta: float = 0.9999) -> None:
        super().__init__(prior, label_smoothing=objective.label_smoothing, reduction=objective.reduction)
        require(0.0 <= start <= 1.0, f"start = {start} of deferred re-weighting must lie between 0 and 1 (never).")
        require(
            not objective.own_weights and objective.class_weights is None,
            f"{type(objective).__name__} already weighs the classes; deferred re-weighting would correct for their "
            'frequencies a second time. Use it with objective.name="cross-entropy", "focal" or "ldam", '
            "or set objective.drw_start=1.",
        )
        self.objective = objective
        self.start = start
        self.corrects_prior = objective.corrects_prior or (start < 1 and beta > 0)
        self.accepts_soft_targets = objective.accepts_soft_targets
        self.needs_features = objective.needs_features
        self.sigmoid_bias = objective.sigmoid_bias
        self._store_vector("weights", effective_number_weights(prior, beta))

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the wrapped objective's loss of logits (N, K) and targets (N,) or (N, K)."""
        loss: Tensor = self.objective(logits, targets, features)
        return loss

    def set_epoch(self, epoch: float, epochs: int) -> None:
        """Set the weights for `epoch` of `epochs`, counted from 0: none before start x epochs, then the weights."""
        self.objective.set_epoch(epoch, epochs)
        active = share_reached(self.start, epoch, epochs)
        if active != (self.objective.class_weights is not None):
            self.objective.set_class_weights(self.weights if active else None)

    def matching_head_bias(self, num_classes: int | None = None) -> Tensor:
        """Return that of the wrapped objective, (K,)."""
        return self.objective.matching_head_bias(num_classes or self.num_classes)

    @property
    def class_weights(self) -> Tensor | None:
        """The class weights in force at this epoch, (K,), or None."""
        return self.objective.class_weights

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"start={self.start}"
