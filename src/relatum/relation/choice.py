"""Which samples form the related stream, when they are only a part of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from relatum.errors import ModelError
from relatum.relation.streams import related_count


class Choice:
    """The choice of one forward pass, the same for everyone who asks during that pass.

    Whoever asks first draws. A place that asks twice is in a new pass: so passes are told apart also where the root
    is not called, for example with a timm model's `forward_features`. Gradient checkpointing asks again during the
    backward pass, with the state of the random numbers restored: it draws again, so that the dropout after it finds
    the same state too, and must come to the same choice.

    Args:
        fraction: share of the batch; 1 chooses nothing.

    Attributes:
        rows: (M,) the chosen samples; None means all, in order.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self.rows: Tensor | None = None
        self._drawn_at = ""
        self._known_to: tuple[str, ...] = ()
        self._samples = -1

    def forget(self) -> None:
        """A new pass begins."""
        self.rows, self._drawn_at, self._known_to, self._samples = None, "", (), -1

    def ask(self, place: str, n: int, device: torch.device) -> Tensor | None:
        """Return the choice among `n` samples; `place` is who asks."""
        if self.fraction == 1:
            return None
        if self._drawn_at and _recomputing():
            if place == self._drawn_at:
                self._check(self._draw(n, device))
        elif self._samples == n and place not in self._known_to:
            self._known_to = (*self._known_to, place)
        else:
            self.rows = self._draw(n, device)
            self._drawn_at, self._known_to, self._samples = place, (place,), n
        return self.rows

    def _draw(self, n: int, device: torch.device) -> Tensor:
        return torch.randperm(n, device=device)[: related_count(n, self.fraction)]

    def _check(self, again: Tensor) -> None:
        if self.rows is None or not torch.equal(self.rows, again):
            raise ModelError(
                "gradient checkpointing recomputes a pass whose choice of related samples is gone. Call backward() "
                "after each forward pass, keep preserve_rng_state=True, or set related_fraction=1."
            )


def _recomputing() -> bool:
    """Whether this forward computation happens inside a backward pass, as in gradient checkpointing."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
