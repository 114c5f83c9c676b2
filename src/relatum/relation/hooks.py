"""Hooks on an unmodified host. They are callable objects: closures would point at the original after a deepcopy.

They keep no state of their own: gradient checkpointing runs them again in the backward pass. What belongs to one pass
(which samples are related) is drawn once, at the door of the model, and kept by the relation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from relatum.errors import ModelError
from relatum.relation.attention import BatchAttention
from relatum.relation.gather import relate_across_processes
from relatum.relation.layout import Layout
from relatum.relation.padding import fit_padding, from_argument
from relatum.relation.streams import count_samples, plain_count, repeat_targets, same_tuple, split_streams

if TYPE_CHECKING:
    from relatum.relation.relation import Relation


class RelationHook:
    """What every hook of ours derives from, so that a copied model can be searched for them."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation


class Boundary(RelationHook):
    """Pre-hook of the root: a pass begins; the named inputs are repeated for the related stream.

    Args:
        relation: the handle.
        parameters: names of the arguments of the model's forward, in their order.
        names: those that are doubled, always by name, never by shape.
    """

    def __init__(self, relation: Relation, parameters: tuple[str, ...], names: tuple[str, ...]) -> None:
        super().__init__(relation)
        self.parameters, self.names = parameters, frozenset(names)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Repeat what is per sample."""
        if not self.relation.active:
            return None
        self.relation.begin_pass()
        given = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        doubled = {name: value for name, value in given.items() if name in self.names and value is not None}
        if not doubled or self.relation.single_stream:
            return None
        self._choose(doubled)
        rows = self.relation.chosen
        both = {name: repeat_targets(value, 2, rows) for name, value in doubled.items()}
        positional = tuple(both.get(name, value) for name, value in zip(self.parameters, args, strict=False))
        return (*positional, *args[len(positional) :]), {k: both.get(k, v) for k, v in kwargs.items()}

    def _choose(self, doubled: dict[str, Any]) -> None:
        leaves = [leaf for value in doubled.values() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        device = leaves[0].device if leaves else torch.device("cpu")
        n = count_samples(next(iter(doubled.values())))
        self.relation.choice.ask("the door", n, device)
        self.relation.note_doubling(n)


class TakePlain(RelationHook):
    """Pre-hook of a module that runs once although the streams began at the door: keep the plain rows."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Cut every per-sample tensor to its plain rows."""
        if not self.relation.active or self.relation.single_stream:
            return None
        fraction = self.relation.spec.related_fraction
        return tree_map(lambda v: _plain_rows(v, fraction), (args, kwargs))


class GiveBoth(RelationHook):
    """Forward hook of such a module: its output serves both streams."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Repeat every per-sample tensor."""
        if not self.relation.active or self.relation.single_stream:
            return None
        rows = self.relation.chosen
        return tree_map(lambda v: repeat_targets(v, 2, rows) if isinstance(v, Tensor) else v, output)


class SiteHook(RelationHook):
    """Relate features: [plain] or [plain; related] in, [plain; related] out.

    Args:
        relation: the handle.
        attention: the attention of this site.
        layout: how the features lie.
        first: whether the streams begin here; else the input has both already.
    """

    def __init__(self, relation: Relation, attention: BatchAttention, layout: Layout, first: bool) -> None:
        super().__init__(relation)
        self.attention, self.layout, self.first = attention, layout, first

    def relate(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return the streams after this site; samples in dimension 0."""
        relation = self.relation
        relation.note_site(self.layout.site, x.shape[0], self.first)
        if relation.single_stream:
            return self._attend(x, None, padding)
        if self.first:
            plain = whole = x
            rows = relation.choice.ask(self.layout.site, x.shape[0], x.device)
        else:
            plain, related = split_streams(x, relation.spec.related_fraction)
            rows = relation.chosen
            whole = related if rows is None else plain.index_copy(0, rows, related)
        return torch.cat([plain, self._attend(whole, rows, padding)])

    def _attend(self, whole: Tensor, rows: Tensor | None, padding: Tensor | None) -> Tensor:
        if padding is not None and padding.shape[0] != whole.shape[0]:
            padding = padding[: whole.shape[0]]  # the layer's own mask has both streams; the plain rows come first

        def relate(x: Tensor) -> Tensor:
            mask = None if padding is None else fit_padding(padding, x.shape[:-1], self.layout.part)
            if self.relation.spec.gather:
                return relate_across_processes(x, self.attention, rows, mask, self.layout.site)
            related: Tensor = self.attention(x, rows, mask)
            return related

        # Under autocast the encoder may answer in another precision than the host.
        return self.layout.apply(whole, relate, rows).to(whole.dtype)


class RelateInput(SiteHook):
    """Pre-hook of a classifier: features (N, C) become [plain; related]."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Replace the first argument of the classifier while the relation is active."""
        if not self.relation.active:
            return None
        features = args[0]
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ModelError(
                f"BatchFormer relates pooled features (N, C), but the classifier receives {shape}; "
                "name the layer that receives pooled features with BatchFormer(at=...)."
            )
        return (self.relate(features), *args[1:])


class RelateOutput(SiteHook):
    """Forward hook of a layer: its output, or the first entry of the tuple it returns, gets the streams.

    Args:
        relation: the handle.
        attention: the attention of this site.
        layout: how the features lie.
        first: whether the streams begin here.
        parameters: names of the arguments of the layer's forward, to find its padding mask by name.
    """

    def __init__(
        self,
        relation: Relation,
        attention: BatchAttention,
        layout: Layout,
        first: bool,
        parameters: tuple[str, ...] = (),
    ) -> None:
        super().__init__(relation, attention, layout, first)
        self.parameters = parameters

    @property
    def each_position_alone(self) -> bool:
        """True if what becomes of a token does not depend on which others of its sample there are."""
        padded = self.relation.spec.padding is not None or self.relation.padded is not None  # type: ignore[union-attr]
        return self.layout.tokens == "all" and not padded

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Replace the output of the layer while the relation is active."""
        if not self.relation.active:
            return None
        features = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(features, Tensor) or features.ndim < 2:
            raise ModelError(
                f"'{self.layout.site}' returns {type(features).__name__}, not features (N, ..., C); name another layer."
            )
        dim = self.relation.spec.batch_dim  # type: ignore[union-attr]
        related = self.relate(features.movedim(dim, 0), self._padding(args, kwargs)).movedim(0, dim)
        return _with_first(output, related) if isinstance(output, tuple | list) else related

    def _padding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        name = self.relation.spec.padding  # type: ignore[union-attr]
        if self.relation.padded is not None or name is None:
            return self.relation.padded
        return from_argument(name, {**dict(zip(self.parameters, args, strict=False)), **kwargs}.get(name))


def _plain_rows(value: Any, fraction: float) -> Any:
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    return value[: plain_count(value.shape[0], fraction)]


def _with_first(output: tuple[Any, ...] | list[Any], first: Tensor) -> Any:
    parts = [first, *output[1:]]
    return parts if isinstance(output, list) else same_tuple(output, parts)
