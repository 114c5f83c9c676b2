"""Other ways to compute a layer, put in place for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def replaced_forward(parts: Sequence[nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, calling one of the parts computes `forward(part, *inputs)`; afterwards they are as before.

    No hooks: who looks for them, as `can_be_partial` does, would take ours for those of a user who watches.

    Args:
        parts: modules that `is_replaced` is not true for.
        forward: in place of their own.
    """
    found: Sequence[Any] = parts
    for part in found:
        part.forward = functools.partial(forward, part)
    try:
        yield
    finally:
        for part in found:
            del part.forward


def is_replaced(part: nn.Module) -> bool:
    """Whether the module has a `forward` of its own, not that of its class: somebody was first."""
    return "forward" in vars(part)
