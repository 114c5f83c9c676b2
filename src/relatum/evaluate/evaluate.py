"""Run a model over a split and score it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from relatum.batch import Batch
from relatum.config import EvalConfig
from relatum.errors import ConfigError, DataError, ModelError, suggest
from relatum.evaluate.posthoc import adjust_logits, tau_normalised
from relatum.evaluate.scores import Scores, score
from relatum.models.outputs import as_logits
from relatum.models.quick import quickly
from relatum.prior import ClassPrior
from relatum.processes import join_rows
from relatum.relation import attached_relation

PRECISIONS = ("float32", "bfloat16")


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    prior: ClassPrior | None = None,
    *,
    config: EvalConfig | None = None,
    split: str = "test",
    device: torch.device | str | None = None,
    precision: str = "float32",
    channels_last: bool = False,
    progress: Callable[[int], None] | None = None,
    sigmoid_bias: float | None = None,
) -> Scores:
    """Score `model` on all samples of `loader`; see `collect` for what both may be.

    Args:
        model: any classifier; its mode and weights are afterwards as before.
        loader: yields `Batch`es or pairs (inputs, targets).
        prior: training counts. None: no shot groups (rule "n/a", groups None with 0 classes), no logit adjustment.
        config: shot rule, post-hoc corrections and bootstrap; default `EvalConfig()`.
        split: name of the data, for the record.
        device: where to compute; default where the model is. If given, the model is moved there and stays.
        precision: "float32", or "bfloat16" for autocast. Scores are computed in float64 either way.
        channels_last: hand images to the model in channels-last memory order.
        progress: called after each batch with the number of samples in it.
        sigmoid_bias: `sigmoid_bias` of the objective the model was trained with; None for those on a softmax. It adds
            the calibration of sigmoid confidences (`Scores.sigmoid`), unless a post-hoc correction of the logits or of
            the classifier is on: what comes out of one is no log-odds any more.
    """
    settings = EvalConfig() if config is None else config
    if settings.adjust_tau != 0 and prior is None:
        raise ConfigError("adjust_tau needs the class counts of the training data; give a ClassPrior as prior.")
    changed = tau_normalised(model, settings.tau_norm) if settings.tau_norm != 0 else nullcontext(model)
    with changed, _mini_batch(model) if settings.mini_batch else nullcontext(model):
        logits, targets = collect(
            model, loader, device=device, precision=precision, channels_last=channels_last, progress=progress
        )
    if settings.adjust_tau != 0 and prior is not None:
        logits = adjust_logits(logits, prior, settings.adjust_tau)
    return score(
        logits,
        targets,
        prior,
        split=split,
        rule=settings.shot_rule,
        bootstrap=settings.bootstrap,
        adjustment=describe_adjustment(settings),
        sigmoid_bias=None if settings.adjust_tau != 0 or settings.tau_norm != 0 else sigmoid_bias,
    )


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    precision: str = "float32",
    channels_last: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) float32 and targets (N,) int64 of all samples, on the CPU, in the order of the loader.

    An `EvalLoader` of several processes has a share of the split in each; all of them get the rows of the whole split.
    The model runs in evaluation mode without gradients; afterwards every module is in the mode it was in. It may return
    a tensor (N, K), an object with `.logits`, or a tuple of heads, which are averaged. The arguments are those of
    `evaluate`.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"unknown precision '{precision}'; {suggest(precision, PRECISIONS)}")
    place = _device_of(model) if device is None else torch.device(device)
    if device is not None:
        model.to(place)
    logits, targets = [], []
    autocast = torch.autocast(place.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
    with _evaluation_mode(model), torch.inference_mode(), autocast, quickly(model):
        for item in loader:
            batch = _as_batch(item)
            inputs = batch.to(place, channels_last=channels_last).inputs
            logits.append(_rows_of_logits(model(inputs), len(batch)).float().cpu())
            targets.append(batch.targets.cpu())
            if progress is not None:
                progress(len(batch))
    # Joined outside inference mode, so that callers get ordinary tensors they may also differentiate.
    return _joined(logits, loader), _joined(targets, loader)


def _joined(parts: list[Tensor], loader: Iterable[Any]) -> Tensor:
    """Make one tensor of the parts; of a loader that has only this process's share, those of all processes."""
    shared = getattr(loader, "world", 1) > 1
    rows = join_rows(parts) if shared else torch.cat(parts) if parts else None
    if rows is None:
        raise DataError("the evaluation loader is empty; check that the split has samples.")
    return rows


def describe_adjustment(config: EvalConfig) -> str:
    """Return the post-hoc corrections of `config` in words, or "none"."""
    parts = ["mini-batch inference"] if config.mini_batch else []
    if config.tau_norm != 0:
        parts.append(f"tau-normalised classifier (tau {config.tau_norm:g})")
    if config.adjust_tau != 0:
        parts.append(f"logit adjustment (tau {config.adjust_tau:g})")
    return " and ".join(parts) or "none"


def _mini_batch(model: nn.Module) -> AbstractContextManager[nn.Module]:
    relation = attached_relation(model)
    if relation is None:
        raise ConfigError("mini_batch scores the related stream, but no relation is attached to the model.")
    return relation.inference("related")


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    # Module by module: model.train() would also wake layers that were frozen in evaluation mode on purpose.
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _as_batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        inputs, targets = item.inputs, item.targets
    elif isinstance(item, (tuple, list)) and len(item) >= 2 and isinstance(item[0], Tensor):
        inputs, targets = item[0], torch.as_tensor(item[1])
    else:
        raise DataError(
            f"the evaluation loader gave a {type(item).__name__}; "
            "it must yield relatum Batches or pairs (inputs, targets) of tensors."
        )
    if targets.is_floating_point() or targets.shape != (len(inputs),):
        raise DataError(
            f"evaluation needs one class id per sample, but got targets of shape {tuple(targets.shape)} and type "
            f"{targets.dtype} for {len(inputs)} samples; soft targets (mixup, smoothing) belong to training only."
        )
    return Batch(inputs, targets.long(), torch.arange(len(inputs)))


def _rows_of_logits(output: Any, samples: int) -> Tensor:
    logits = as_logits(output)
    if logits.ndim != 2 or len(logits) != samples:
        raise ModelError(
            f"the model returned shape {tuple(logits.shape)} for {samples} samples instead of one row of logits each"
            + _cause(logits, samples)
        )
    return logits


def _cause(head: Tensor, samples: int) -> str:
    if head.ndim == 2 and len(head) == 2 * samples:
        return "; a relation is active: evaluate outside relation.inference(), or call relation.detach() first."
    return "; give a classifier whose output is (N, K)."
