"""The next batch is prepared in a thread of its own while the model works on this one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def worth_it() -> bool:
    """Whether something waits while batches are prepared: further cores, or a GPU."""
    return torch.get_num_threads() > 1 or torch.accelerator.is_available()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items as they come, each made while the one before it is used.

    Preparing images is many small operations, which one core does while the others would wait; a GPU would wait as a
    whole. Torch leaves the interpreter lock to others while it computes, so a thread is enough.

    An error of `items` is raised where the item would have come. Whoever stops early waits for the item in the making.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="next-batch") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
