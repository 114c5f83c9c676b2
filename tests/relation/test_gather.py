"""Several processes with gather=True against one process that sees the whole batch; equal and unequal shares of it."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from gather_cases import CASES, V1, all_rows, batch, flat, one_pass, parts
from gather_processes import join, launch
from torch.nn import functional

from relatum import attach
from relatum.errors import ConfigError

EXACT = 1e-10
SIZES = {2: [(3, 3), (5, 3), (4, 1), (3, 0)], 3: [(2, 2, 2), (3, 1, 2), (2, 0, 3)]}
FEWER = {"v1", "v1 fraction, two layers", "v2 shared module", "v2 fraction, two layers", "v2 padding", "v2 recomputed"}
REFERENCE = {"v1", "v1 fraction, two layers", "v2 fraction, two layers", "v2 padding"}

pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def cases(world):
    """All for two processes; a third one changes little but costs time."""
    return CASES if world == 2 else {name: CASES[name] for name in sorted(FEWER)}


def average(gradients):
    """What DistributedDataParallel does."""
    dist.all_reduce(gradients)
    return gradients / dist.get_world_size()


def equivalence(rank, world, folder):
    """Every case with every division of the batch."""
    found = {}
    for name, case in cases(world).items():
        for sizes in SIZES[world]:
            scale = world / all_rows(case.spec, sizes)
            seen = one_pass(case, sum(sizes), parts(sizes)[rank], gather=True, scale=scale)
            found[name, sizes] = {**seen, "gradients": average(seen["gradients"])}
    torch.save(found, f"{folder}/{rank}.pt")
    if world == 2:
        alone(rank, folder)


def alone(rank, folder):
    """The group ends; each process is a group of its own; then they meet again."""
    found = {}
    dist.destroy_process_group()
    join(0, 1, f"{folder}/alone{rank}")
    for name in sorted(REFERENCE):
        found[name] = one_pass(CASES[name], 6, slice(0, 6), gather=True)
    dist.destroy_process_group()
    join(rank, 2, f"{folder}/again")
    found["again"] = one_pass(CASES["v1"], 6, parts((3, 3))[rank], gather=True)
    torch.save(found, f"{folder}/alone{rank}.pt")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Return what `world` processes found, and their folder; they are started once."""

    @cache
    def start(world):
        folder = tmp_path_factory.mktemp("gather")
        launch(equivalence, world, folder)
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)], folder

    return start


def expectation(case, sizes, seen):
    """One process with the concatenated batch, and the same related samples."""
    chosen = torch.cat([s["chosen"] + part.start for s, part in zip(seen, parts(sizes), strict=True)])
    rows = None if case.spec.related_fraction == 1 else chosen
    return one_pass(case, sum(sizes), slice(0, sum(sizes)), rows=rows, scale=1 / all_rows(case.spec, sizes))


def streams_of_all(case, sizes, seen):
    """The outputs of the processes in the order in which one process has them: first all plain rows, then related."""
    if not case.spec.keeps_plain:
        return torch.cat([s["output"] for s in seen])
    plain = [s["output"][:n] for s, n in zip(seen, sizes, strict=True)]
    return torch.cat(plain + [s["output"][n:] for s, n in zip(seen, sizes, strict=True)])


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in SIZES for name in cases(world)])
def test_several_processes_equal_one(processes, world, name):
    by_rank, case = processes(world)[0], CASES[name]
    for sizes in SIZES[world]:
        seen = [found[name, sizes] for found in by_rank]
        expected = expectation(case, sizes, seen)
        torch.testing.assert_close(streams_of_all(case, sizes, seen), expected["output"], rtol=0, atol=EXACT)
        torch.testing.assert_close(seen[0]["gradients"], expected["gradients"], rtol=0, atol=EXACT)
        assert all(torch.equal(s["gradients"], seen[0]["gradients"]) for s in seen)
        # Every process scales its loss by the number of processes, for the mean that follows; inputs see the sum.
        inputs = torch.cat([s["input"] for s in seen]) / len(sizes)
        torch.testing.assert_close(inputs, expected["input"], rtol=0, atol=EXACT)
        assert expected["gradients"][-expected["relation"] :].abs().max() > 1e-4, "the relation has gradients"


@pytest.mark.parametrize("name", CASES)
def test_samples_of_other_processes_matter(name):
    """Without gathering the same comparison fails: the cases can tell."""
    case, sizes = CASES[name], (3, 3)
    seen = [one_pass(case, 6, part, scale=2 / all_rows(case.spec, sizes)) for part in parts(sizes)]
    expected = expectation(case, sizes, seen)
    apart = (seen[0]["gradients"] + seen[1]["gradients"]) / 2
    assert (apart - expected["gradients"]).abs().max() > 1e-6


def test_a_single_process_in_a_group_is_as_without(processes):
    by_rank, folder = processes(2)
    for rank in (0, 1):
        found = torch.load(folder / f"alone{rank}.pt", weights_only=True)
        for name in REFERENCE:
            expected = one_pass(CASES[name], 6, slice(0, 6))
            for what in ("output", "gradients", "input"):
                assert torch.equal(found[name][what], expected[what]), name
        # A new group after the old one was destroyed: the first processes are not asked any more.
        again, before = found["again"]["output"], by_rank[rank]["v1", (3, 3)]["output"]
        assert torch.equal(again, before)


def test_gather_without_processes_is_refused():
    model = flat().double()
    relation = attach(model, V1(gather=True))
    x, y, _ = batch(CASES["v1"], 6)
    with pytest.raises(ConfigError, match="torchrun"):
        functional.cross_entropy(model(x), relation.targets(y))
