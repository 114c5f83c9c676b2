"""What a forward pass changes besides gradients: kept before it, put back where its step is not taken."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Before:
    """Buffers and random numbers before a step, so that the step can be run again exactly, or left out.

    One copy of each buffer is made once and written into at every step.

    Args:
        task: the task whose buffers (running statistics of BatchNorm and the like) are kept.
        device: where it computes.
    """

    def __init__(self, task: nn.Module, device: torch.device) -> None:
        self._task, self._device = task, device
        self._slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._buffers: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._random: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Remember buffers and random numbers as they are now."""
        slots = [(m._buffers, name) for m in self._task.modules() for name, b in m._buffers.items() if b is not None]
        buffers = [held for owner, name in slots if (held := owner[name]) is not None]
        same = len(buffers) == len(self._buffers) and all(map(_same_kind, buffers, self._copies))
        if not same:
            self._copies = [torch.empty_like(buffer) for buffer in buffers]
        if buffers:
            torch._foreach_copy_(self._copies, buffers)
        self._slots, self._buffers = slots, buffers
        self._random = _random_states(self._device)

    @torch.no_grad()
    def put_back(self) -> None:
        """Make buffers and random numbers those of the last `keep`."""
        for (owner, name), buffer in zip(self._slots, self._buffers, strict=True):
            owner[name] = buffer  # a module may have put another tensor in its place
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._copies)
        _set_random_states(self._device, self._random)


def _same_kind(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


def _random_states(device: torch.device) -> list[Tensor]:
    own = {"cuda": lambda: torch.cuda.get_rng_state(device), "mps": lambda: torch.mps.get_rng_state()}.get(device.type)
    return [torch.get_rng_state()] if own is None else [torch.get_rng_state(), own()]


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])
