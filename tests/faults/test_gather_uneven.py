"""Processes that differ: unequal numbers of samples are right, all else ends in words instead of a hang."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from relatum import BatchFormer, BatchFormerV2, attach
from relatum.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[1] / "relation"))
from gather_processes import join, launch

SIZES = (5, 3)
EXACT = 1e-10

pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def host(width=8):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4)).double()


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sum(SIZES), 6, generator=generator, dtype=torch.float64), torch.arange(sum(SIZES)) % 4


def gradients(wrap, gather, part, share):
    """Gradients of the mean loss on `part`, times `share`."""
    model = host()
    relation = attach(model, BatchFormer(dropout=0.0, gather=gather))
    (x, y), call = data(), wrap(model)
    (share * functional.cross_entropy(call(x[part]), relation.targets(y[part]))).backward()
    return [p.grad for p in model.parameters()]


def refusal(spec=BatchFormer, width=8, shape=(4, 6), dtype=torch.float64, frozen=False, trains=True, **options):
    """What a pass with gather=True ends in."""
    model = host(width).to(dtype)
    model.requires_grad_(not frozen)
    attach(model, spec(gather=True, dropout=0.0, **options))
    try:
        with torch.set_grad_enabled(trains):
            model(torch.ones(shape, dtype=dtype))
    except ConfigError as error:
        return str(error)
    return "no error"


def differing(rank):
    """Each pair is refused on both processes, which then go on: a collective left half done would spoil the next."""
    v2 = {"spec": BatchFormerV2, "at": "0"}
    return {
        "width": refusal(width=8 + 4 * rank),
        "positions": refusal(**v2, shape=(4, 5 + rank, 6)),
        "portrait": refusal(**v2, channels="last", shape=(4, 2 + rank, 3 - rank, 6)),
        "precision": refusal(dtype=(torch.float64, torch.float32)[rank]),
        "gradients": refusal(trains=rank == 0),
        "layers": refusal(layers=1 + rank),
        "nothing": refusal(shape=(4 + rank, 6)),
    }


def uneven(rank, world, folder):
    part = slice(0, SIZES[0]) if rank == 0 else slice(SIZES[0], None)
    exact = world * SIZES[rank] / sum(SIZES)
    found = {"differing": differing(rank)}
    for name, share in (("weighted", exact), ("unweighted", 1.0)):
        found[name] = gradients(DistributedDataParallel, True, part, share)
    torch.save(found, f"{folder}/{rank}.pt")
    alone(rank, world, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uneven")
    launch(uneven, 2, folder)
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_unequal_shares_weighted_by_their_samples_give_the_gradients_of_one_process(seen):
    expected = gradients(lambda model: model, False, slice(None), 1.0)
    for rank in (0, 1):
        for one, two in zip(seen[rank]["weighted"], expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=EXACT)


def test_unweighted_the_small_share_counts_more(seen):
    """The mean over processes of the mean over unequal shares is not the mean over all samples, gather or not."""
    expected = gradients(lambda model: model, False, slice(None), 1.0)
    assert max((one - two).abs().max() for one, two in zip(seen[0]["unweighted"], expected, strict=True)) > 1e-3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("width", ["'2'", "process 0 has samples of shape (8,)", "process 1 has samples of shape (12,)"]),
        ("positions", ["'0'", "(5, 8)", "(6, 8)", "inputs of the same size"]),
        ("portrait", ["(2, 3, 8)", "(3, 2, 8)"]),
        ("precision", ["float64", "float32"]),
        ("gradients", ["no padding mask, gradients", "no gradients"]),
        ("layers", ["1 layer;", "2 layers."]),
        ("nothing", ["no error"]),
    ],
)
def test_processes_that_differ_are_refused_on_all(seen, what, words):
    messages = [found["differing"][what] for found in seen]
    assert messages[0] == messages[1]
    assert all(word in messages[0] for word in words), messages[0]


def alone(rank, world, folder):
    """The second process does not gather at first; then it gathers once and ends, while the first waits for more."""
    dist.barrier()
    dist.destroy_process_group()
    words = []
    join(rank, world, f"{folder}/short", seconds=10)
    if rank == 0:
        with pytest.raises(RuntimeError) as caught:
            refusal()
        words += caught.value.__notes__
        Path(folder, "first").touch()
    wait_for(Path(folder, "first"))
    dist.destroy_process_group()
    join(rank, world, f"{folder}/long", seconds=60)
    assert refusal() == "no error"
    if rank == 0:
        with pytest.raises(RuntimeError) as caught:
            refusal()
        Path(folder, "words").write_text("\n".join([*words, *caught.value.__notes__]))
    os._exit(0)  # there is nobody left to say goodbye to


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


def test_a_process_that_does_not_come_is_noticed(folder):
    never, no_more = (folder / "words").read_text().splitlines()
    assert never == no_more
    assert "waited for the samples of the others in vain" in never and "same number of steps" in never
