"""Import once, then start pair after pair of processes that train together and part; print how each of them ended.

As a program: launch_again.py PAIRS FOLDER. The processes are forked before torch has done anything, so that a pair
costs a fraction of a second and many of them can be tried.
"""

from __future__ import annotations

import os
import sys

import torch
import torch._dynamo  # what training imports later, once for all pairs
from launch_kit import free_port
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relatum import processes


def train_and_part() -> None:
    processes.join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    shared = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        shared(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        processes.agreed(False)
    print("the last word of", processes.rank())
    processes.leave(0)


def fork(rank: int, folder: str) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with open(f"{folder}/said-{rank}", "w") as file:  # noqa: PTH123
        os.dup2(file.fileno(), 1)
    train_and_part()
    os._exit(99)  # `leave` does not come back


def main(pairs: int, folder: str) -> None:
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for _ in range(pairs):
        os.environ["MASTER_PORT"] = str(free_port())
        children = [fork(rank, folder) for rank in range(2)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        said = [open(f"{folder}/said-{rank}").read().strip() for rank in range(2)]  # noqa: PTH123, SIM115
        print(*codes, *said, sep="|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
