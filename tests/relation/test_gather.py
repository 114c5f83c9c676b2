"""Two processes with gather=True against one process that sees both halves of the batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

from relatum import BatchFormer, attach
from relatum.errors import ConfigError

SPEC = BatchFormer(dropout=0.0)


def model_and_data():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    x, y = torch.randn(6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    return model, x, y


def gradients(model, x, y, relation):
    functional.cross_entropy(model(x), relation.targets(y)).backward()
    return [p.grad for p in model.parameters()]


def worker(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model, x, y = model_and_data()
    relation = attach(model, BatchFormer(dropout=0.0, gather=True))
    part = slice(rank * 3, rank * 3 + 3)
    grads = gradients(model, x[part], y[part], relation)
    for grad in grads:  # what DDP does: average over processes
        dist.all_reduce(grad)
        grad /= 2
    if rank == 0:
        torch.save(grads, f"{folder}/gradients.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:relation batch")
def test_gradients_of_two_processes_equal_those_of_one(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    together = torch.load(tmp_path / "gradients.pt", weights_only=True)
    model, x, y = model_and_data()
    expected = gradients(model, x, y, attach(model, SPEC))
    other = model_and_data()[0]
    apart = gradients(other, x[:3], y[:3], attach(other, SPEC))
    assert not torch.allclose(apart[0], expected[0], rtol=1e-3), "the other process's samples must matter"
    for one, two in zip(expected, together, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:relation batch")
def test_gather_without_processes_is_refused():
    model, x, _ = model_and_data()
    attach(model, BatchFormer(gather=True))
    with pytest.raises(ConfigError, match="torchrun"):
        model(x)
