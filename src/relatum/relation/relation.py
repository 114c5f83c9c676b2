"""Relation: the handle on an attached model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from relatum.errors import ConfigError, ModelError, TrainingError
from relatum.models.find import find_classifier
from relatum.processes import world
from relatum.relation.choice import Choice
from relatum.relation.specs import BatchFormer, Spec
from relatum.relation.streams import pick_rows, related_count, repeat_targets, split_streams

MODULE_NAME = "relation"
SMALL_BATCH = 8


class Relation:
    """What `attach` returns: repeats targets, splits outputs, makes parameter groups, and detaches.

    Args:
        model: the host, changed in place.
        spec: what was attached.
        sites: names of the modules whose input (a classifier) or output (a layer) is related.
        at_door: whether the streams begin at the inputs of the model, not at the first site.

    Attributes:
        choice: the samples of the related stream in the current pass, where they are not all.
        padded: padding mask of the current pass, set by `padding`.
        resting: set it to True to train on without the relation for a while: until it is False again the model gives
            and costs in training mode what the plain model does, and the relation gets no gradient.
    """

    def __init__(self, model: nn.Module, spec: Spec, sites: tuple[str, ...], at_door: bool = False) -> None:
        self.model = model
        self.spec = spec
        self.sites = sites
        self.at_door = at_door
        self.choice = Choice(spec.related_fraction)
        self.padded: Tensor | None = None
        self.resting = False
        self._handles: list[RemovableHandle] = []
        self._inference: Literal["", "both", "related"] = ""
        self._begun = False
        self._batch = 0
        self._warned = False

    @property
    def attached(self) -> bool:
        """Whether the relation is on the model now."""
        return MODULE_NAME in self.model._modules

    @property
    def chosen(self) -> Tensor | None:
        """(M,) samples of the related stream in the last pass; None means all, in order."""
        return self.choice.rows

    @property
    def active(self) -> bool:
        """Whether a forward pass would relate samples now: in training mode unless resting, or inside `inference()`."""
        return self.attached and ((self.model.training and not self.resting) or bool(self._inference))

    @property
    def module(self) -> nn.Module:
        """The modules of the relation, registered on the model."""
        if not self.attached:
            raise ModelError("this relation is detached; attach() a new one.")
        return self.model.get_submodule(MODULE_NAME)

    @property
    def single_stream(self) -> bool:
        """Whether related features replace the plain ones now, instead of joining them."""
        return not self.spec.keeps_plain or self._inference == "related"

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The streams in the output of the model now, in their order."""
        if not self.active:
            return ("plain",)
        return ("related",) if self.single_stream else ("plain", "related")

    def targets(self, targets: Any) -> Any:
        """Repeat targets (tensors, lists, dicts, soft labels) to fit the last output, in stream order."""
        return repeat_targets(targets, len(self.stream_names), self.chosen)

    def stream_targets(self, targets: Any) -> dict[str, Any]:
        """Return the targets of each stream of the last output by name."""
        return {name: pick_rows(targets, self._rows_of(name)) for name in self.stream_names}

    def split(self, output: Any) -> tuple[Any, Any]:
        """Split a two-stream output (N + M, ...) into (plain, related); M = N unless related_fraction is below 1."""
        if self.attached and self.single_stream:
            raise ModelError("there is one stream, the related one; there is nothing to split.")
        return split_streams(output, self.spec.related_fraction)

    def streams(self, output: Any) -> dict[str, Any]:
        """Return the output of each stream by name, whatever mode the model is in."""
        names = self.stream_names
        return dict(zip(names, self.split(output), strict=True)) if len(names) == 2 else {names[0]: output}

    def in_related(self, plain: Tensor) -> Tensor:
        """Return those rows of the plain stream that have a counterpart in the related one, in its order."""
        rows: Tensor = pick_rows(plain, self._rows_of("related"))
        return rows

    def _rows_of(self, stream: str) -> Tensor | None:
        return self.chosen if stream == "related" and not self.single_stream else None

    def param_groups(
        self, base_lr: float, lr_scale: float = 0.1, weight_decay: float | None = None
    ) -> list[dict[str, Any]]:
        """Return two optimizer groups that hold every trainable parameter of the model exactly once.

        Args:
            base_lr: learning rate of the model.
            lr_scale: learning rate of the relation over `base_lr`.
            weight_decay: weight decay of the relation; None leaves the optimizer's default.
        """
        own = {id(p) for p in self.module.parameters()}
        host = [p for p in self.model.parameters() if p.requires_grad and id(p) not in own]
        related: dict[str, Any] = {"params": list(self.module.parameters()), "lr": base_lr * lr_scale}
        if weight_decay is not None:
            related["weight_decay"] = weight_decay
        return [{"params": host, "lr": base_lr}, related]

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise unless every parameter of the relation is trainable and in exactly one group of `optimizer`."""
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad or held.count(id(parameter)) != 1:
                raise TrainingError(
                    f"relation parameter '{name}' is frozen, or not in exactly one optimizer group, so it would not "
                    "train. Build the optimizer after attach(), for example from relation.param_groups(lr)."
                )

    def check_gradients(self) -> None:
        """Raise unless the last backward pass reached every parameter of the relation."""
        gradients = {name: p.grad for name, p in self.module.named_parameters()}
        missing = [name for name, gradient in gradients.items() if gradient is None]
        if missing or (
            self._classifier_passes_gradients() and not any(g is not None and g.any() for g in gradients.values())
        ):
            what = f"parameter '{missing[0]}' got no gradient" if missing else "got only zero gradients"
            raise TrainingError(
                f"the relation {what}: the loss does not see the related stream. "
                "Was the model in training mode, and the loss computed on all 2N rows?"
            )

    def _classifier_passes_gradients(self) -> bool:
        """False for a classifier that starts at zero, as torchvision's ViT: its first gradients are zero rightly."""
        try:
            classifiers = [module for _, module in find_classifier(self.model)]
        except ModelError:
            return True  # a model that does not classify
        return any(bool(p.any()) for module in classifiers for p in module.parameters() if p.ndim > 1)

    @contextmanager
    def inference(self, streams: Literal["both", "related"] = "both") -> Iterator[nn.Module]:
        """Relate samples in evaluation mode too.

        Args:
            streams: "both" gives the output that training has; "related" gives the related stream alone, (N, ...),
                without the cost of the plain one: mini-batch inference, with any number of sites.
        """
        if streams not in ("both", "related"):
            raise ConfigError(f"inference() gives 'both' streams or the 'related' one, not '{streams}'.")
        before, self._inference = self._inference, streams
        try:
            yield self.model
        finally:
            self._inference = before

    @contextmanager
    def padding(self, mask: Tensor) -> Iterator[nn.Module]:
        """Leave padded positions out: inside, they neither attend nor are attended to.

        Args:
            mask: bool, True is padding: (N, L) for tokens, or (N, H, W), which is resized to each feature map.
        """
        if isinstance(self.spec, BatchFormer):
            raise ModelError(
                "BatchFormer relates one feature per image; padding is for the positions of BatchFormerV2."
            )
        before, self.padded = self.padded, mask
        try:
            yield self.model
        finally:
            self.padded = before

    # -- called by the hooks -----------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """A forward pass of the root begins: forget the choice of the last one."""
        self.choice.forget()
        self._begun = self.at_door

    def plain_rows(self, rows: int) -> int | None:
        """How many of `rows` are plain where the streams have begun; None where there is one stream.

        A layer may have folded positions into the rows: (N L, C) keeps the order of the streams.
        """
        if not self.active or self.single_stream or not (self._begun and self._batch):
            return None
        both = self._batch + related_count(self._batch, self.spec.related_fraction)
        return rows // both * self._batch if rows % both == 0 else None

    def note_doubling(self, n: int) -> None:
        """The inputs of `n` samples were repeated at the door."""
        if self.at_door:
            self._batch = n
            if not torch.compiler.is_compiling():
                self.note_batch(n)

    def note_site(self, site: str, rows: int, first: bool) -> None:
        """A site is reached: check the order of the sites, and warn about a small batch."""
        if first:
            self._begun, self._batch = True, rows
            if not torch.compiler.is_compiling():
                self.note_batch(rows)
        elif not (self._begun or self.single_stream):
            raise ModelError(
                f"'{site}' ran before '{self.sites[0]}', where the streams begin; list the sites of "
                "BatchFormerV2(at=...) in the order in which they run."
            )

    def note_batch(self, n: int) -> None:
        """Warn once when the relation batch, with `n` samples of this process, is too small to relate anything."""
        n *= world() if self.spec.gather else 1
        if n < SMALL_BATCH and not self._warned:
            self._warned = True
            alone = "a sample then only attends to itself" if n == 1 else "there is little to attend to"
            warnings.warn(f"relation batch of {n}: {alone}. Use at least {SMALL_BATCH} samples.", stacklevel=2)

    def detach(self) -> nn.Module:
        """Remove the relation in place and return the model: keys, hooks, types and outputs as never attached."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.model._modules.pop(MODULE_NAME, None)
        return self.model

    def __repr__(self) -> str:
        if not self.attached:
            return "Relation(detached)"
        count = sum(p.numel() for p in self.module.parameters())
        return f"Relation({self.spec}, sites={list(self.sites)}, parameters={count:,})"
