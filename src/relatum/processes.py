"""Several processes as one: who we are, what all of us agree on, and how to leave without a crash.

Started by `torchrun` (or by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT), a training runs in
several processes that exchange gradients. Alone, every function here answers at once and nothing is exchanged.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relatum.errors import ConfigError
from relatum.launch import launched

T = TypeVar("T")
# A process that dies is noticed at once, since its connections close. This bounds the wait for one that hangs.
TIMEOUT_MINUTES = 30.0
TIMEOUT_VARIABLE = "RELATUM_TIMEOUT_MINUTES"
_MESSAGE_KEY = "relatum/message"
# What gloo's errors have in common. Its exchange that waits in vain names a source file of gloo; the next ones, which
# find the connection closed for that reason, say no more than "Application timeout caused pair closure".
_LOST_SIGNS = ("gloo", "pair closure")


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if _together() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _together() else 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks."""
    return rank() == 0


def local_rank() -> int:
    """Number of this process on its machine, which is the number of its accelerator."""
    return _number("LOCAL_RANK", rank())


def join() -> None:
    """Meet the other processes; alone, do nothing."""
    if not launched() or _together():
        return
    if "RANK" not in os.environ:
        raise ConfigError("WORLD_SIZE is set but RANK is not; start with torchrun, or set all of its variables.")
    # Without a name torch takes gloo for tensors on the CPU and NCCL for those on GPUs: we need both there.
    backend = None if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    dist.init_process_group(backend, timeout=timedelta(minutes=_timeout()))


def wait() -> None:
    """Return when all processes have come here."""
    if _together():
        total(torch.zeros(1))


def total(values: Tensor) -> Tensor:
    """Return the sum of `values` over all processes, in their shape and on the CPU."""
    summed = values.detach().cpu().clone()
    if _together():
        dist.all_reduce(summed)
    return summed


def agreed(*flags: bool) -> tuple[bool, ...]:
    """Return for each of `flags` whether any process raised it."""
    if not _together():
        return flags
    raised = total(torch.tensor(flags, dtype=torch.int64))
    return tuple(bool(count) for count in raised)


def from_first(value: T) -> T:
    """Return what the first process gave; the others may give None."""
    if not _together():
        return value
    box: list[Any] = [value if is_first() else None]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    answer: T = box[0]
    return answer


def from_all(value: T) -> list[T]:
    """Return what each process gave, in the order of their ranks."""
    if not _together():
        return [value]
    answers: list[Any] = [None] * world()
    dist.all_gather_object(answers, value)
    return answers


def join_rows(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the rows of all processes one below the other, in the order of their ranks; None if there are none.

    Args:
        parts: (n, ...) each, of this process; any number of rows, also none.
    """
    own = torch.cat(list(parts)) if parts else None
    if not _together():
        return own
    kinds = from_all(None if own is None else (len(own), tuple(own.shape[1:]), own.dtype))
    known = [kind for kind in kinds if kind is not None]
    if not known:
        return None
    most, (_, shape, dtype) = max(kind[0] for kind in known), known[0]
    # Gloo gathers pieces of one size only, so all are filled up to the largest and cut again.
    padded = torch.zeros(most, *shape, dtype=dtype)
    if own is not None:
        padded[: len(own)] = own
    gathered = [torch.empty_like(padded) for _ in kinds]
    dist.all_gather(gathered, padded)
    return torch.cat([rows[: kind[0]] for rows, kind in zip(gathered, kinds, strict=True) if kind is not None])


def share_buffers(module: nn.Module) -> None:
    """Give all processes the buffers (statistics of batch normalisation) of the first."""
    if not _together():
        return
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)


def first_to_speak() -> bool:
    """Whether no other process has said yet why all must stop: so that a fault is told once."""
    if not _together():
        return not launched() or _number("RANK", 0) == 0
    try:
        return int(dist.distributed_c10d._get_default_store().add(_MESSAGE_KEY, 1)) == 1
    except (RuntimeError, OSError):  # the process that kept the count is gone, without a word
        return True


def connection_lost(error: BaseException) -> str:
    """Return what to say if `error` is the loss of another process; empty if it is something else."""
    text = str(error)
    if not launched() or not (isinstance(error, dist.DistError) or any(sign in text for sign in _LOST_SIGNS)):
        return ""
    return (
        f"another process ended, or did not answer for {_timeout():g} minutes, so all stop. The last checkpoint is "
        "good: rerun the same command to continue."
    )


def leave(code: int) -> NoReturn:
    """End this process with `code`, after the others are done too if all went well.

    Gloo keeps threads that are still running when Python takes the process apart; now and then that aborts a process
    whose work was complete (signal 6, after the last line). So we take leave of the others, write out what is
    buffered and end at once, without taking anything apart.
    """
    if code == 0 and _together():
        wait()
        gc.collect()  # what still holds the group, such as DistributedDataParallel, must go before it
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def _timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        minutes = float(text) if text else TIMEOUT_MINUTES
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e6:
        raise ConfigError(f"{TIMEOUT_VARIABLE} is '{text}'; give minutes, for example {TIMEOUT_MINUTES:g}.")
    return minutes


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
