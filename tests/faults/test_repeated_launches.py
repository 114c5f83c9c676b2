"""Two processes train, part, and exit with 0: again and again, since a crash at the end comes only now and then."""

import sys

import pytest
from launch_kit import run_ranks

LAUNCHES = 20
SCRIPT = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from relatum import processes

processes.join()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
shared = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    shared(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    processes.agreed(False)
print("the last word of", processes.rank())
processes.leave(0)
"""


@pytest.mark.parametrize("launch", range(LAUNCHES))
def test_all_processes_exit_cleanly(tmp_path, launch):
    ended = run_ranks([sys.executable, "-c", SCRIPT], 2, tmp_path)
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]
    assert [e.out for e in ended] == [f"the last word of {rank}\n" for rank in range(2)]
