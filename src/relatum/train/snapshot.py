"""Everything a run needs to go on as if it had never stopped: taken, and put back."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relatum.errors import CheckpointError
from relatum.processes import from_all, rank
from relatum.train.checkpoint import State


@dataclass(frozen=True)
class Position:
    """Where training stands: epochs done, micro-batches done in the current epoch, optimizer steps in total."""

    epoch: int = 0
    batch: int = 0
    step: int = 0

    def with_batches_of(self, images: int, before: int, accumulate: int, steps_per_epoch: int) -> Position:
        """Return the same place in the epoch where batches have another size than before; never beyond it.

        Args:
            images: images of a batch over all processes now.
            before: images of a batch when this position was saved.
            accumulate: micro-batches of a step; a step is not begun in its middle.
            steps_per_epoch: optimizer steps of an epoch now.
        """
        if images == before:
            return self
        steps = self.batch * before // (images * accumulate)
        return Position(self.epoch, steps * accumulate, self.epoch * steps_per_epoch + steps)


def take_snapshot(model: nn.Module, ema: nn.Module | None, optimizer: torch.optim.Optimizer) -> State:
    """Copy weights, their moving average, the optimizer and the random generators into a `State`."""
    state = State()
    state.add("model", model.state_dict())
    if ema is not None:
        state.add("ema", ema.state_dict())
    tensors, state.values["optimizer"] = flatten_optimizer(optimizer)
    state.add("optimizer", tensors)
    state.add("rng", _random_states())
    return state


def put_back(state: State, model: nn.Module, ema: nn.Module | None, optimizer: torch.optim.Optimizer) -> None:
    """Undo `take_snapshot` in place."""
    try:
        model.load_state_dict(state.part("model"))
        if ema is not None:
            ema.load_state_dict(state.part("ema"))
        restore_optimizer(optimizer, state.part("optimizer"), state.values["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint is of another model or optimizer than this run ({error}); start a new run directory."
        ) from error
    _set_random_states(state.part("rng"))


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state apart into tensors by name and JSON values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for index, entry in state["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values[f"{index}.{name}"] = value
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    return tensors, {"state": values, "groups": groups}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], values: Any) -> None:
    """Put back what `flatten_optimizer` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **values["state"]}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    fresh = optimizer.state_dict()["param_groups"]
    if len(fresh) != len(values["groups"]):
        raise CheckpointError("the checkpoint has other parameter groups than this run; start a new run directory.")
    groups = [{**saved, "params": now["params"]} for saved, now in zip(values["groups"], fresh, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _random_states() -> dict[str, Tensor]:
    """The generators that dropout draws from, of all processes: the CPU's and those of the accelerators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    own = {"cpu": torch.get_rng_state()} | {f"cuda.{number}": state for number, state in enumerate(cuda)}
    everyone = enumerate(from_all(own))
    return {_of(number, name): state for number, states in everyone for name, state in states.items()}


def _set_random_states(states: dict[str, Tensor]) -> None:
    own = states.get(_of(rank(), "cpu"))
    if own is None:  # there are more processes than when this was saved: chance of their own, but always the same
        torch.manual_seed(zlib.crc32(states["cpu"].numpy().tobytes()) + rank())
        return
    torch.set_rng_state(own)
    for number in range(torch.cuda.device_count()):
        if (state := states.get(_of(rank(), f"cuda.{number}"))) is not None:
            torch.cuda.set_rng_state(state, number)


def _of(process: int, name: str) -> str:
    """The first process keeps the plain names, as if it were alone."""
    return f"rank.{process}.{name}" if process else name
