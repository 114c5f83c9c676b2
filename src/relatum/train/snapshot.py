"""Everything a run needs to go on as if it had never stopped: taken, and put back."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relatum.errors import CheckpointError
from relatum.processes import from_all, rank
from relatum.train.checkpoint import State, flatten_optimizer, restore_optimizer


@dataclass(frozen=True)
class Position:
    """Where training stands: epochs done, micro-batches done in the current epoch, optimizer steps in total."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


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
