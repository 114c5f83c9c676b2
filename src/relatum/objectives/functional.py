"""The losses as pure functions: per-sample values (N,), and one rule each for soft targets, smoothing and weights.

Each loss is defined by a table `losses` (N, K) whose entry (i, k) is the loss of sample i if its class were k. The rest
is the same everywhere, see `expected_loss`, `sample_weights` and `reduce_losses`. All arithmetic is in float32 or, for
float64 logits, in float64, and uses no matrix product, which autocast would take to lower precision.
The losses on sigmoids sum over the classes, so they weigh their two sides by y and 1 - y instead: the same expectation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relatum.errors import ConfigError, suggest
from relatum.objectives.checks import require

REDUCTIONS = ("mean", "sum", "none")


def soft_targets(targets: Tensor, num_classes: int, label_smoothing: float = 0.0) -> Tensor:
    """Return targets as probabilities (N, K), at least float32, a share `label_smoothing` spread over all K classes.

    Args:
        targets: integer labels (N,) or soft targets (N, K).
        num_classes: K.
        label_smoothing: eps in (1 - eps) y + eps / K.
    """
    probabilities = F.one_hot(targets.long(), num_classes).float() if targets.ndim == 1 else at_least_float32(targets)
    return probabilities * (1.0 - label_smoothing) + label_smoothing / num_classes


def target_rows(targets: Tensor, like: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return `soft_targets` (N, K) in the type of the logits `like` (N, K): a label and its one-hot row are equal bits.

    Args:
        targets: integer labels (N,) or soft targets (N, K).
        like: (N, K), float32 or float64.
        label_smoothing: eps in (1 - eps) y + eps / K.
    """
    num_classes = like.shape[1]
    rows = F.one_hot(targets.long(), num_classes) if targets.ndim == 1 else targets
    return rows.to(like.dtype) * (1.0 - label_smoothing) + label_smoothing / num_classes


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or in its own type if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def expected_loss(losses: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the expectation of the loss under each target: sum_k y_k losses_k, (N,).

    Label smoothing replaces y by (1 - eps) y + eps / K. As the expectation is linear in y, that is done on the losses,
    so that a label and its one-hot row give the same bits.

    Args:
        losses: (N, K), entry (i, k) the loss of sample i if its class were k.
        targets: integer labels (N,) or soft targets (N, K).
        label_smoothing: eps.
    """
    if targets.ndim == 1:
        value = losses.gather(1, targets.long().unsqueeze(1)).squeeze(1)
    else:
        value = (targets.to(losses.dtype) * losses).sum(dim=1)
    if label_smoothing:
        value = (1.0 - label_smoothing) * value + label_smoothing * losses.mean(dim=1)
    return value


def sample_weights(targets: Tensor, class_weights: Tensor) -> Tensor:
    """Return the weight of each sample, (N,): that of its label, or the average of the class weights under its target.

    Label smoothing has no part in it: it softens the answer, not the question which class a sample stands for.
    """
    if targets.ndim == 1:
        return class_weights[targets.long()]
    return (at_least_float32(targets) * class_weights).sum(dim=1)


def reduce_losses(losses: Tensor, weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Reduce per-sample losses l (N,) with sample weights w (N,).

    "mean": sum(w l) / sum(w), so that weights say how much samples count against each other and not how large the loss
    is. "sum": sum(w l). "none": w l, (N,).
    """
    if reduction not in REDUCTIONS:
        raise ConfigError(f"unknown reduction '{reduction}'; {suggest(reduction, REDUCTIONS)}")
    weighted = losses if weights is None else losses * weights.to(losses.dtype)
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return weighted.sum()
    return weighted.mean() if weights is None else weighted.sum() / weights.to(losses.dtype).sum()


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return -log softmax(z)_y for logits (N, K) and targets (N,) or (N, K), as (N,)."""
    losses = -torch.log_softmax(at_least_float32(logits), dim=1)
    return expected_loss(losses, targets, label_smoothing)


def logit_adjusted(
    logits: Tensor, targets: Tensor, log_prior: Tensor, tau: float = 1.0, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of z_k + tau log pi_k, (N,), with `log_prior` (K,)."""
    z = at_least_float32(logits)
    return cross_entropy(z + tau * log_prior.to(z), targets, label_smoothing=label_smoothing)


def balanced_softmax(logits: Tensor, targets: Tensor, log_prior: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of z_k + log pi_k, (N,): logit adjustment with tau = 1."""
    return logit_adjusted(logits, targets, log_prior, 1.0, label_smoothing=label_smoothing)


def vector_scaling(
    logits: Tensor,
    targets: Tensor,
    divisors: Tensor,
    log_prior: Tensor,
    tau: float = 1.0,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy of z_k / D_k + tau log pi_k, (N,), with `divisors` D and `log_prior` (K,)."""
    z = at_least_float32(logits)
    return logit_adjusted(z / divisors.to(z), targets, log_prior, tau, label_smoothing=label_smoothing)


def focal(logits: Tensor, targets: Tensor, gamma: float = 1.0, *, label_smoothing: float = 0.0) -> Tensor:
    """Return (1 - p_y)^gamma times the cross-entropy, (N,); soft targets take the expectation over y.

    1 - p is kept as a logarithm, which is exact where p rounds to one and whose gradient is finite for gamma < 1 too.
    """
    z = at_least_float32(logits)
    total = z.logsumexp(dim=1, keepdim=True)
    modulator = torch.exp(gamma * (_log_sum_of_others(z) - total))
    return expected_loss(modulator * (total - z), targets, label_smoothing)


def binary_cross_entropy(
    logits: Tensor, targets: Tensor, bias: Tensor | None = None, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return the sum over the classes of the binary cross-entropy of sigmoid(z_k + b_k) against y_k, (N,).

    Args:
        logits: z, (N, K).
        targets: (N,) or (N, K); soft targets are taken as they are.
        bias: b, (K,), added while training only; None for plain binary cross-entropy.
        label_smoothing: eps in (1 - eps) y + eps / K.
    """
    z = at_least_float32(logits)
    z = z if bias is None else z + bias.to(z)
    rows = target_rows(targets, z, label_smoothing)
    return F.binary_cross_entropy_with_logits(z, rows, reduction="none").sum(dim=1)


def sigmoid_focal(logits: Tensor, targets: Tensor, gamma: float = 1.0, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the sum over the classes of the binary focal loss, (N,); gamma = 0 is `binary_cross_entropy`.

    With p = sigmoid(z) a class pays -(1 - p)^gamma log p where it is meant and -p^gamma log(1 - p) where it is not. The
    powers are taken of logarithms, which stay exact where p rounds to zero or one.
    """
    z = at_least_float32(logits)
    log_yes, log_no = F.logsigmoid(z), F.logsigmoid(-z)
    meant = -torch.exp(gamma * log_no) * log_yes
    not_meant = -torch.exp(gamma * log_yes) * log_no
    rows = target_rows(targets, z, label_smoothing)
    return (rows * meant + (1.0 - rows) * not_meant).sum(dim=1)


def ldam(
    logits: Tensor, targets: Tensor, margins: Tensor, scale: float = 30.0, *, label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of s (cos_k - m_y [k = y]), (N,); soft targets take the expectation over y.

    Only the class that is asked for pays its margin, hence the loss of each class k has logits of its own: it is
    log(1 + exp(log sum_{j != k} exp(s cos_j) - s (cos_k - m_k))), which needs no K by K table.

    Args:
        logits: scaled cosines s cos, (N, K), in [-s, s].
        targets: (N,) or (N, K).
        margins: m, (K,).
        scale: s.
        label_smoothing: share of the target spread over all classes, each then with its own margin.
    """
    z = at_least_float32(logits)
    excess = _log_sum_of_others(z) - (z - scale * margins.to(z))
    return expected_loss(torch.logaddexp(excess, torch.zeros_like(excess)), targets, label_smoothing)


def _log_sum_of_others(z: Tensor) -> Tensor:
    """Return log sum_{j != k} exp(z_j) for every k, (N, K), without cancellation.

    Where k is the largest logit, log(1 - p_k) would lose all digits, so its sum is taken afresh; for all others p_k is
    at most one half.
    """
    require(z.shape[1] > 1, "focal and ldam compare a class with the others and need at least two classes.")
    largest = torch.zeros_like(z, dtype=torch.bool).scatter(1, z.argmax(dim=1, keepdim=True), True)
    total = z.logsumexp(dim=1, keepdim=True)
    beside_largest = z.masked_fill(largest, -torch.inf).logsumexp(dim=1, keepdim=True)
    share = torch.exp(z - total).masked_fill(largest, 0.0)
    return torch.where(largest, beside_largest, total + torch.log1p(-share))
