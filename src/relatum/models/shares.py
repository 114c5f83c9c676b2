"""A batch in shares, each computed by a thread of its own on one core, forward and backward.

The usual way, all cores compute one operation after the other together; behind each of them they wait, and read what
the other has written. How much that costs depends on how far apart the cores are: on two of a virtual machine, masked
pretraining of vit-nano-p4 had steps of 164 ms for some minutes and of 208 for others. In shares they took 161 ms in the
former; in a slow time those of vit-tiny-p4 took 0.74 to 0.80 of the time of the whole batch. The result is the same up
to rounding, and does not depend on which thread is first.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from relatum.models.last_block import is_watched

Mean = Callable[..., Tensor]
T = TypeVar("T")

# Layers of others may draw random numbers or keep something between calls.
_KNOWN = ("torch.nn.", "timm.", "relatum.models.")
# Shares of 32 images of vit-tiny-p4 took 1.04 of the time of the whole batch, those of 64 and 128 were quicker.
_FEWEST_IMAGES = 64
# A guess, measured with two threads only: many would wait for the interpreter, which starts one operation at a time.
_MOST = 4


def useful_shares(model: nn.Module, images: Tensor) -> int:
    """How many shares of a batch to compute at the same time: one for each of torch's threads, or 1 for the usual way.

    Args:
        model: what computes them.
        images: (N, ...).
    """
    threads = torch.get_num_threads()
    if not 1 < threads <= _MOST or len(images) < _FEWEST_IMAGES * threads or images.device.type != "cpu":
        return 1
    own = "OpenMP" in torch.__config__.parallel_info()  # elsewhere threads have no number of their own
    return threads if own and can_be_shared(model) else 1


def can_be_shared(model: nn.Module) -> bool:
    """Whether each image is computed for itself and without chance, and nobody watches: then threads do not matter."""
    return not any(_stands_against(part) for part in model.modules())


def _stands_against(part: nn.Module) -> bool:
    kind = type(part)
    if is_watched(part) or not kind.__module__.startswith(_KNOWN) or issubclass(kind, _NormBase):
        return True
    chance = part.p if isinstance(part, _DropoutNd) else part.drop_prob if isinstance(part, DropPath) else 0.0
    # The second pass of a checkpoint sets the random numbers back.
    return bool(chance) or bool(vars(part).get("grad_checkpointing"))


def mean_in_shares(mean: Mean, parameters: Sequence[Tensor], tensors: Sequence[Tensor], shares: int) -> Tensor:
    """Return `mean(*tensors)`, computed in shares of the batch at the same time, its gradients as well.

    Args:
        mean: from tensors (N, ...) to the mean of something over their rows, each of which counts for itself. It must
            not draw random numbers, whose order would depend on the threads, nor change modules or buffers.
        parameters: what `mean` uses and gradients are wanted for; those for `tensors` are not computed.
        tensors: each (N, ...).
        shares: how many.
    """
    made: Tensor = _MeanInShares.apply(mean, shares, len(tensors), *tensors, *parameters)
    return made


class _MeanInShares(torch.autograd.Function):
    """Each share goes forward and back at once: nobody has to wait for the others in between."""

    @staticmethod
    def forward(ctx: Any, mean: Mean, shares: int, count: int, *given: Tensor) -> Tensor:
        tensors, parameters = given[:count], given[count:]
        there = _as_here()

        def compute(*parts: Tensor) -> tuple[Tensor, list[Tensor | None]]:
            weight = len(parts[0]) / len(tensors[0])
            with there():
                weighted = mean(*parts) * weight
            return weighted.detach(), list(torch.autograd.grad(weighted, parameters, allow_unused=True))

        split = zip(*(tensor.tensor_split(shares) for tensor in tensors), strict=True)
        means, gradients = zip(*_at_once([functools.partial(compute, *parts) for parts in split]), strict=True)
        ctx.gradients = _sums(gradients)
        return functools.reduce(torch.add, means)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError(
                "backward() twice on a loss in shares, whose gradients are there once: compute it again."
            )
        if factor != 1:  # several micro-batches, or a weight
            torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], factor)
        return (*(None for _ in range(len(ctx.needs_input_grad) - len(gradients))), *gradients)


def _as_here() -> Callable[[], AbstractContextManager[None]]:
    """What each thread has for itself, gradients and the autocast of this one, to be entered in another."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextmanager
    def there() -> Iterator[None]:
        # Without the cache of cast weights: all threads have one, and the first to leave would clear it for the others.
        with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False), torch.enable_grad():
            yield

    return there


def _sums(of_shares: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    """The sums over shares, in their order, so that they are the same at every run; None where all have none."""
    first, *others = of_shares  # a parameter is used in all shares or in none
    used = [place for place, gradient in enumerate(first) if gradient is not None]
    sums: list[Any] = [first[place] for place in used]
    for share in others:
        torch._foreach_add_(sums, [gradient for gradient in share if gradient is not None])
    known = dict(zip(used, sums, strict=True))
    return [known.get(place) for place in range(len(first))]


def _at_once(work: Sequence[Callable[[], T]]) -> list[T]:
    """Do all of it at the same time, each in a thread of its own; return the results in the order of the work."""
    futures: list[Future[T]] = [worker.submit(part) for worker, part in zip(_workers(len(work)), work, strict=True)]
    return [future.result() for future in futures]


@functools.cache
def _workers(count: int) -> tuple[ThreadPoolExecutor, ...]:
    """Threads that wait for work, each of which computes on one core. Torch is left with as many threads as it had."""
    threads = torch.get_num_threads()
    workers = tuple(ThreadPoolExecutor(1, thread_name_prefix="relatum-share") for _ in range(count))
    for worker in workers:
        worker.submit(_take_one_core).result()
    torch.set_num_threads(threads)
    return workers


# The child of a fork has none of the threads that wait.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _take_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first question settles its number; asked later, it would be that of all
