"""Real processes for the tests of gather: gloo on this machine, started together, waited for with a limit."""

import datetime
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 300  # seconds; only a hang takes that long


def launch(job: Callable[..., None], world: int, folder: Path, *args: Any) -> None:
    """Run job(rank, world, folder, *args) in `world` processes; raise what they raise, and kill them at the limit."""
    context = mp.start_processes(_run, (job, world, str(folder), args), world, join=False, start_method="spawn")
    deadline = time.monotonic() + LIMIT
    try:
        while not context.join(timeout=5):
            assert time.monotonic() < deadline, f"{job.__name__} hangs on {world} processes"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()


def join(rank: int, world: int, meeting: str, seconds: float = 120) -> None:
    """Enter the group of processes that meet at the file `meeting`."""
    wait = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=wait)


def _run(rank: int, job: Callable[..., None], world: int, folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    join(rank, world, f"{folder}/meeting-{job.__name__}-{world}")
    job(rank, world, folder, *args)
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)  # threads of gloo sometimes abort an interpreter that ends by itself, after all is done
