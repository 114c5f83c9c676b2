"""BatchFormerV2 on two processes: DDP keeps the relation in step, and gather=True is one large batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from relatum import BatchFormerV2, attach

CLASSES = 4


class Encoder(nn.Module):
    """A small vision transformer; torch's own, since every process imports what it needs anew."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, stride=4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x).flatten(2).transpose(1, 2)).mean(1))


def model_and_data(rank_seed=0, **options):
    """A model in float64 with two sites; `rank_seed` makes the relation start differently."""
    torch.manual_seed(3)
    model = Encoder().double().train()
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    torch.manual_seed(4 + rank_seed)
    relation = attach(model, BatchFormerV2(at=("blocks.layers.0", "blocks.layers.2"), dropout=0.0, **options))
    return model, relation, x, y


def gradients(model, relation, x, y):
    functional.cross_entropy(model(x), relation.targets(y)).backward()
    return [p.grad for p in relation.model.parameters()]


def train_in_parallel(rank, part, folder):
    """One step of DDP with a part of the batch as the related stream; the processes choose differently."""
    model, relation, x, y = model_and_data(rank_seed=rank, related_fraction=0.5)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(relation.param_groups(0.1), lr=0.1)
    before = [p.detach().clone() for p in relation.module.parameters()]
    torch.manual_seed(10 + rank)
    gradients(parallel, relation, x[part], y[part])
    optimizer.step()
    after = [p.detach().clone() for p in relation.module.parameters()]
    torch.save((before, after), f"{folder}/weights{rank}.pt")


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    part = slice(rank * 3, rank * 3 + 3)
    for variant in ("paper", "stable"):
        model, relation, x, y = model_and_data(variant=variant, gather=True)
        grads = gradients(model, relation, x[part], y[part])
        for grad in grads:  # what DDP does: average over processes
            dist.all_reduce(grad)
            grad /= 2
        if rank == 0:
            torch.save(grads, f"{folder}/{variant}.pt")
    train_in_parallel(rank, part, folder)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("processes")
    mp.spawn(worker, args=(str(path),), nprocs=2)
    return path


@pytest.mark.filterwarnings("ignore:relation batch")
@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_gathered_gradients_of_two_processes_equal_those_of_one(folder, variant):
    together = torch.load(folder / f"{variant}.pt", weights_only=True)
    model, relation, x, y = model_and_data(variant=variant)
    expected = gradients(model, relation, x, y)
    other, its_relation, _, _ = model_and_data(variant=variant)
    apart = gradients(other, its_relation, x[:3], y[:3])
    assert not torch.allclose(apart[0], expected[0], rtol=1e-3), "the other process's samples must matter"
    for one, two in zip(expected, together, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


def test_the_relation_stays_equal_across_processes(folder):
    (start, first), (other_start, second) = (
        torch.load(folder / f"weights{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    for one, two in zip(start, other_start, strict=True):
        assert torch.equal(one, two), "DDP begins with the weights of the first process"
    for begun, one, two in zip(start, first, second, strict=True):
        assert not torch.equal(begun, one), "the step moved it"
        assert torch.equal(one, two)
