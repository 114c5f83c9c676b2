"""Relations under DistributedDataParallel: its averages and our exchange share the backward pass of a whole task."""

import pytest
import torch
import torch.distributed as dist
from gather_cases import CLASSES, TWO, V1, V2, Tokens, flat
from gather_processes import launch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from relatum import ClassificationTask, attach
from relatum.batch import Batch
from relatum.objectives import CrossEntropy

EXACT = 1e-10
STEPS = 4
SPECS = {"v1": V1, "v2": lambda **options: V2(at=TWO, **options)}
SMALL = 1e-5  # megabytes: a bucket for nearly every parameter, so that averaging and gathering alternate

pytestmark = pytest.mark.filterwarnings("ignore:relation batch", "ignore:find_unused_parameters")


class Skipping(nn.Module):
    """A host that leaves out a layer for its first `skipped` samples: a random depth, fixed."""

    def __init__(self, skipped):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.skipped = skipped

    def forward(self, x):
        x = self.first(x).tanh()
        if self.skipped < len(x):
            x = torch.cat([x[: self.skipped], self.second(x[self.skipped :]).tanh()])
        return self.fc(x)


def batches(samples=6):
    generator = torch.Generator().manual_seed(8)
    for _ in range(STEPS):
        yield torch.randn(samples, 4, 6, generator=generator, dtype=torch.float64), torch.arange(samples) % CLASSES


def build(spec, host=Tokens, seed=4):
    torch.manual_seed(3)
    model = host().double()
    torch.manual_seed(seed)
    return model, attach(model, spec)


def train(model, relation, part=slice(None), wrap=None):
    """Train a whole task for some steps; return losses and weights."""
    task = ClassificationTask(model, CrossEntropy(), relation)
    step = task if wrap is None else wrap(task)
    optimizer = torch.optim.SGD(relation.param_groups(0.1, lr_scale=1.0), lr=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad(set_to_none=True)
        loss = step(Batch(x[part], y[part], torch.arange(len(x[part]))))["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"loss": torch.stack(losses), "weights": [p.detach().clone() for p in model.parameters()]}


def in_parallel(module):
    return DistributedDataParallel(module, find_unused_parameters=True, bucket_cap_mb=SMALL)


def gradients(call, model, relation, x, y):
    model.zero_grad()
    functional.cross_entropy(call(x), relation.targets(y)).backward()
    return [p.grad.clone() for p in model.parameters()]


def averaged(found):
    for gradient in found:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return found


def skipping(rank, part):
    """The first process leaves a layer out, the second does not: averages are ready at different moments."""
    model, relation = build(V1(gather=True), lambda: Skipping(3 if rank == 0 else 0))
    parallel, seen = in_parallel(model), []
    for x, y in batches():
        seen.append(gradients(parallel, model, relation, x[part, 0], y[part]))
    return seen


def recomputed(part):
    """Gradient checkpointing over the whole model, in the older way of torch."""
    model, relation = build(V2(at=TWO, gather=True, related_fraction=0.5))
    (x, y), *_ = batches()
    plain, again = [], []
    for kept, call in ((plain, model), (again, lambda x: checkpoint(model, x, use_reentrant=True))):
        torch.manual_seed(9)
        kept += gradients(call, model, relation, x[part].requires_grad_(), y[part])
    return plain, again


def in_bfloat16(part):
    """Features of the host are in bfloat16, and so they travel."""
    model, relation = build(V1(gather=True), flat)
    (x, y), *_ = batches()
    travelled, real = [], dist.all_gather

    def all_gather(parts, own, group=None):
        travelled.append(own.dtype)
        return real(parts, own, group=group)

    dist.all_gather = all_gather
    with torch.autocast("cpu", torch.bfloat16):
        output = model.float()(x[part, 0].float())
    dist.all_gather = real
    functional.cross_entropy(output.float(), relation.targets(y[part])).backward()
    return {"output": output.detach().float(), "gradients": averaged([p.grad for p in model.parameters()])}, travelled


def without_training(part):
    """Relations at inference are gathered too, and without gradients."""
    _, relation = build(V2(at=TWO, gather=True))
    (x, _), *_ = batches()
    with relation.inference("related") as inferring, torch.no_grad():
        return inferring.eval()(x[part])


def job(rank, world, folder):
    part = slice(rank * 3, rank * 3 + 3)
    found = {}
    for name, spec in SPECS.items():
        found[name] = train(*build(spec(gather=True)), part, in_parallel)
        model, relation = build(spec())
        (x, y), *_ = batches()
        found[f"{name} apart"] = gradients(in_parallel(model), model, relation, x[part], y[part])
    torch.manual_seed(10 + rank)
    found["fraction"] = train(*build(V2(at=TWO, related_fraction=0.5), seed=rank), part, in_parallel)
    found["uneven"] = train(*build(V2(at=TWO, gather=True)), slice(0, 4) if rank == 0 else slice(4, 6), in_parallel)
    found["skipping"], found["recomputed"] = skipping(rank, part), recomputed(part)
    found["bfloat16"], travelled = in_bfloat16(part)
    found["travelled"] = [str(kind) for kind in travelled]
    found["inference"] = without_training(part)
    torch.save(found, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    launch(job, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def assert_equal(given, expected):
    for one, two in zip(given, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", SPECS)
def test_a_task_trains_as_on_one_process(seen, name):
    expected = train(*build(SPECS[name]()))
    assert_equal(seen[0][name]["weights"], expected["weights"])
    assert all(map(torch.equal, seen[0][name]["weights"], seen[1][name]["weights"]))
    # The loss of the whole batch is the mean of the losses of equal parts.
    assert_equal([(seen[0][name]["loss"] + seen[1][name]["loss"]) / 2], [expected["loss"]])
    start = [p.detach() for p in build(SPECS[name]())[0].parameters()]
    assert not any(map(torch.equal, start, expected["weights"])), "every weight has moved"


@pytest.mark.parametrize("name", SPECS)
def test_without_gather_each_process_relates_its_own(seen, name):
    (x, y), *_ = batches()
    model, relation = build(SPECS[name]())
    apart = [gradients(model, model, relation, x[part], y[part]) for part in (slice(0, 3), slice(3, 6))]
    assert_equal(seen[0][f"{name} apart"], [(one + two) / 2 for one, two in zip(*apart, strict=True)])
    together = gradients(model, model, relation, x, y)
    assert not torch.allclose(seen[0][f"{name} apart"][0], together[0], rtol=1e-3), "another method than gathering"


@pytest.mark.parametrize("name", ["fraction", "uneven"])
def test_weights_stay_equal_across_processes(seen, name):
    start = [p.detach() for p in build(V2(at=TWO))[0].parameters()]
    for begun, one, two in zip(start, seen[0][name]["weights"], seen[1][name]["weights"], strict=True):
        assert not torch.equal(begun, one), "the steps moved it"
        assert torch.equal(one, two)


def test_processes_that_use_different_parts_of_the_model_do_not_mix_up_their_messages(seen):
    model, relation = build(V1(), lambda: Skipping(3))
    for step, (x, y) in enumerate(batches()):
        expected = gradients(model, model, relation, x[:, 0], y)
        assert_equal(seen[0]["skipping"][step], expected)
        assert_equal(seen[1]["skipping"][step], expected)


def test_recomputed_passes_gather_again(seen):
    for found in seen:
        plain, again = found["recomputed"]
        assert_equal(again, plain)


def test_features_travel_in_their_own_precision(seen):
    assert seen[0]["travelled"] == ["torch.int64", "torch.bfloat16"]
    (x, y), *_ = batches()
    model, relation = build(V1(), flat)
    with torch.autocast("cpu", torch.bfloat16):
        output = model.float()(x[:, 0].float())
    functional.cross_entropy(output.float(), relation.targets(y)).backward()
    for part, found in zip((slice(0, 3), slice(3, 6)), seen, strict=True):
        rows = torch.cat([output.float().detach()[:6][part], output.float().detach()[6:][part]])
        torch.testing.assert_close(found["bfloat16"]["output"], rows, rtol=0.02, atol=0.02)
    for one, parameter in zip(seen[0]["bfloat16"]["gradients"], model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=0.1, atol=0.02)


def test_inference_is_gathered_without_gradients(seen):
    (x, _), *_ = batches()
    _, relation = build(V2(at=TWO))
    with relation.inference("related") as inferring, torch.no_grad():
        expected = inferring.eval()(x)
        apart = inferring(x[:3])
    assert_equal([torch.cat([found["inference"] for found in seen])], [expected])
    assert not torch.allclose(apart, expected[:3]), "the other process's samples matter"
