"""Objective: the base of all losses. It checks the batch and applies class weights and reduction in one way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relatum.errors import ConfigError, suggest
from relatum.objectives.checks import check_batch, require
from relatum.objectives.functional import REDUCTIONS, reduce_losses, sample_weights
from relatum.prior import ClassPrior
from relatum.processes import total, world

Weights = Sequence[float] | npt.NDArray[Any] | Tensor


class Objective(nn.Module):
    """A loss over a batch: `objective(logits (N, K), targets (N,) or (N, K), features=None)`.

    A soft target takes the expectation of the loss over its classes, so it agrees exactly with the label where it is
    one-hot. Class weights w_k weigh whole samples: w of a label is its class's, w of a soft target is the average
    sum_k y_k w_k. The weighted mean is sum(w l) / sum(w) over the batch. While several processes train together, the
    sum of the weights is that of all of them, so that the mean of their gradients is the gradient of the whole batch.

    A subclass implements `per_sample`, or `forward` where its loss is not a sum over samples. Nothing here has
    parameters, and all buffers stay out of the state dict: a checkpoint does not depend on the objective.

    Args:
        prior: the class prior of the training data, where the loss needs it or K is to be checked.
        label_smoothing: eps in (1 - eps) y + eps / K. It also applies to soft targets; leave it at 0 where the data
            already smooths them.
        reduction: "mean", "sum" or "none" (N,).
    """

    corrects_prior: bool = False
    """True where the loss makes up for class frequencies; a balanced sampler besides would correct twice."""
    own_weights: bool = False
    """True where the objective sets its class weights itself; `set_class_weights` then refuses."""
    accepts_soft_targets: bool = True
    """False where the loss is only defined for labels (N,), so that mixup and cutmix must be off."""
    needs_features: bool = False
    """True where `forward` must be given what the classifier saw, (N, C)."""
    sigmoid_bias: float | None = None
    """c in sigmoid(z + c), the probability that a loss on sigmoids gives a class with the raw logit z. None: trained on
    a softmax, so that sigmoids of the logits say nothing."""
    _class_weights: Tensor | None

    def __init__(
        self, prior: ClassPrior | None = None, *, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__()
        require(0.0 <= label_smoothing <= 1.0, f"label_smoothing = {label_smoothing} must lie between 0 and 1.")
        if reduction not in REDUCTIONS:
            raise ConfigError(f"unknown reduction '{reduction}'; {suggest(reduction, REDUCTIONS)}")
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self.num_classes = None if prior is None else prior.num_classes
        self._rows_read = False
        self.register_buffer("_class_weights", None, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the reduced loss, in float32 or, for float64 logits, float64.

        Args:
            logits: (N, K).
            targets: integer labels (N,), or soft targets (N, K) whose rows sum to one.
            features: what the classifier saw, (N, C); only objectives that say so need it.
        """
        self._check_batch(logits, targets)
        losses = self.per_sample(logits, targets, features)
        weights = self._weights_on(logits.device)
        if weights is None:
            return reduce_losses(losses, None, self.reduction)
        own = sample_weights(targets, weights)
        return reduce_losses(losses, own, self.reduction) * self._share_of_weights(own)

    def _share_of_weights(self, own: Tensor) -> float:
        """What makes a weighted mean over this process's samples (N,) its part of the mean over all processes."""
        if world() == 1 or not self.training or self.reduction != "mean":
            return 1.0
        mine = own.double().sum()
        return float(mine * world() / total(mine))

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the unweighted loss of each sample, (N,), label smoothing included; the batch is already checked."""
        raise TypeError(f"{type(self).__name__} must implement per_sample or forward")

    def set_epoch(self, epoch: float, epochs: int) -> None:
        """Tell the objective which epoch begins, counted from 0; only those that change while training listen."""

    def matching_head_bias(self, num_classes: int | None = None) -> Tensor:
        """Return what the bias of the classifier should start from, (K,) float32; zeros for losses on the softmax.

        A sigmoid of 1/2 for each of many classes is far from any answer, so losses on sigmoids start better elsewhere.
        Such a bias should not be decayed.

        Args:
            num_classes: K, where the objective was built without a prior.
        """
        return torch.zeros(self._known_classes(num_classes))

    @property
    def class_weights(self) -> Tensor | None:
        """The class weights in force, (K,) float32, or None."""
        return self._class_weights

    def set_class_weights(self, weights: Weights | None) -> None:
        """Weigh the classes by `weights` (K,), positive, from the next call on; None for no weights."""
        require(
            not self.own_weights,
            f"{type(self).__name__} sets its class weights itself, and further weights would correct twice; "
            "weight CrossEntropy, Focal or another objective instead.",
        )
        self._store_weights(weights)

    def _store_weights(self, weights: Weights | None) -> None:
        if weights is None:
            self._class_weights = None
            return
        values = torch.as_tensor(weights).detach().to(torch.float32)
        right_shape = values.ndim == 1 and self.num_classes in (None, len(values))
        require(
            right_shape, f"class weights have shape {tuple(values.shape)}; give one per class ({self.num_classes})."
        )
        require(bool((torch.isfinite(values) & (values > 0)).all()), "class weights must be positive and finite.")
        self._class_weights = values.clone()

    def _store_vector(self, name: str, values: npt.NDArray[np.float64]) -> None:
        """Keep a per-class vector (K,) as a float32 buffer outside the state dict."""
        self.register_buffer(name, torch.from_numpy(values).to(torch.float32), persistent=False)

    def _check_batch(self, logits: Tensor, targets: Tensor) -> None:
        # To read soft targets on an accelerator is to wait for it: the first batch tells whether the data is right.
        read = targets.device.type == "cpu" or not self._rows_read
        check_batch(logits, targets, self._expected_classes(), read_rows=read)
        if targets.ndim == 2 and not torch.compiler.is_compiling():
            self._rows_read = True

    def _known_classes(self, num_classes: int | None) -> int:
        known = self._expected_classes()
        require(
            num_classes is not None or known is not None, "the number of classes is not known here; give num_classes."
        )
        require(num_classes in (None, known) or known is None, f"num_classes = {num_classes}, but there are {known}.")
        return int(num_classes if num_classes is not None else known or 0)

    def _expected_classes(self) -> int | None:
        if self.num_classes is not None or self._class_weights is None:
            return self.num_classes
        return len(self._class_weights)

    def _weights_on(self, device: torch.device) -> Tensor | None:
        # Weights may be set after the objective was moved; move them once instead of at every step.
        if self._class_weights is not None and self._class_weights.device != device:
            self._class_weights = self._class_weights.to(device)
        return self._class_weights

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"label_smoothing={self.label_smoothing}, reduction={self.reduction!r}"
