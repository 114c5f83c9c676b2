"""How features lie in a tensor: which dimension is the channel, which tokens are related."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from relatum.errors import ModelError

# (whole batch (N, ..., C)) -> related samples (M, ..., C)
Relate = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """The layout of the features at one site; the samples are in dimension 0.

    Args:
        site: its name, for errors.
        width: feature width C.
        channels_first: (N, C, H, W) rather than (N, H, W, C); None decides by where the width is found.
        tokens: which tokens of (N, L, C) are related.
        class_tokens: number of class tokens, which come first.
        convolutional: whether the layer holds convolutions, which settles what None cannot.
    """

    site: str
    width: int
    channels_first: bool | None = None
    tokens: Literal["all", "class", "patch"] = "all"
    class_tokens: int = 0
    convolutional: bool = False

    def apply(self, whole: Tensor, relate: Relate, rows: Tensor | None) -> Tensor:
        """Relate the samples of `whole`, in its own layout.

        Args:
            whole: the batch, (N, L, C), (N, H, W, C), (N, C, H, W) or (N, C).
            relate: attention over dimension 0 on channels-last features.
            rows: the samples that `relate` returns; None for all.

        Returns:
            The related samples, (M, ...) in the layout of `whole`.
        """
        first = self._is_channels_first(whole)
        if whole.shape[1 if first else -1] != self.width:
            raise ModelError(
                f"'{self.site}' gives features of shape {tuple(whole.shape)}, but the relation was built for width "
                f"{self.width}; give the right one with BatchFormerV2(width=..., channels=...)."
            )
        if self.tokens != "all":
            return self._some_tokens(whole, relate, rows)
        return relate(whole.movedim(1, -1)).movedim(-1, 1) if first else relate(whole)

    @property
    def part(self) -> slice:
        """The tokens of (N, L, C) that are related."""
        k = self.class_tokens
        return {"all": slice(None), "class": slice(0, k), "patch": slice(k, None)}[self.tokens]

    def _is_channels_first(self, x: Tensor) -> bool:
        if x.ndim < 4:
            return False
        if self.channels_first is not None:
            return self.channels_first
        first, last = x.shape[1] == self.width, x.shape[-1] == self.width
        return first and (not last or self.convolutional)

    def _some_tokens(self, whole: Tensor, relate: Relate, rows: Tensor | None) -> Tensor:
        if whole.ndim != 3:
            raise ModelError(f"'{self.site}' gives {tuple(whole.shape)}, not tokens (N, L, C): use tokens='all'.")
        own = whole if rows is None else whole[rows]
        related = relate(whole[:, self.part]).to(own.dtype)
        if self.tokens == "class":
            return torch.cat([related, own[:, self.class_tokens :]], dim=1)
        return torch.cat([own[:, : self.class_tokens], related], dim=1)


def count_class_tokens(model: nn.Module) -> int:
    """How many class tokens precede the patches: timm, torchvision and transformers models tell; else 0."""
    known: Any = getattr(model, "num_prefix_tokens", None)
    if isinstance(known, int):
        return known
    names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    return len(names & {"cls_token", "class_token"}) + len(names & {"dist_token", "distillation_token"})
