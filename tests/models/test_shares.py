"""A batch in shares: the numbers of the whole, in threads of one core each, whatever the surroundings."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from timm.layers import DropPath
from torch import nn

from relatum.models.mae import create_mae
from relatum.models.shares import _workers, can_be_shared, mean_in_shares, useful_shares


def layers(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double()


def mean_of(model):
    return lambda rows, wanted: (model(rows) - wanted).square().mean()


def batch(n=7):
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randn(n, width, dtype=torch.float64, generator=draw) for width in (4, 3))


def gradients(model, tensors, shares, factor=1.0):
    parameters = list(model.parameters())
    mean = mean_in_shares(mean_of(model), parameters, tensors, shares) if shares else mean_of(model)(*tensors)
    return [mean, *torch.autograd.grad(factor * mean, parameters)]


@pytest.mark.parametrize("shares", [1, 2, 3])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_the_mean_and_its_gradients_are_those_of_the_whole_batch(shares, factor):
    model, tensors = layers(), batch()
    found = gradients(model, tensors, shares, factor)
    for one, other in zip(found, gradients(model, tensors, 0, factor), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    again = gradients(model, tensors, shares, factor)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_a_second_backward_pass_says_what_to_do():
    model, tensors = layers(), batch()
    loss = mean_in_shares(mean_of(model), list(model.parameters()), tensors, 2)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute it again"):
        loss.backward()


def test_each_share_has_its_rows_of_every_tensor_a_thread_and_one_core(two_threads):
    seen, weight = [], nn.Parameter(torch.ones(()))

    def mean(rows, ids):
        seen.append((threading.get_ident(), torch.get_num_threads(), rows[:, 0].tolist(), ids.tolist()))
        return weight * rows.mean()

    rows = torch.arange(5.0).unsqueeze(1)
    assert mean_in_shares(mean, [weight], (rows, torch.arange(5)), 2).item() == pytest.approx(2.0)
    assert sorted(entry[1:] for entry in seen) == [(1, [0.0, 1.0, 2.0], [0, 1, 2]), (1, [3.0, 4.0], [3, 4])]
    assert len({entry[0] for entry in seen} | {threading.get_ident()}) == 3
    assert torch.get_num_threads() == 2


def test_the_threads_compute_in_the_precision_of_the_caller():
    model, rows, seen = layers().float(), torch.randn(4, 4), []

    def mean(rows):
        made = model(rows)
        seen.append((made.dtype, made.requires_grad))
        return made.float().mean()

    with torch.autocast("cpu", torch.bfloat16):
        mean_in_shares(mean, list(model.parameters()), (rows,), 2)
    mean_in_shares(mean, list(model.parameters()), (rows,), 2)
    assert seen == [(torch.bfloat16, True)] * 2 + [(torch.float32, True)] * 2


def test_weights_that_are_not_used_have_no_gradient_and_used_ones_add_up():
    model, idle = layers(), nn.Parameter(torch.ones(1, dtype=torch.float64))
    for _ in range(2):
        mean_in_shares(mean_of(model), [idle, *model.parameters()], batch(), 2).backward()
    assert idle.grad is None
    twice = [p.grad for p in model.parameters()]
    model.zero_grad()
    (2 * mean_of(model)(*batch())).backward()
    for one, parameter in zip(twice, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-12, atol=1e-14)


def test_an_error_in_a_share_reaches_the_caller_and_the_next_batch_is_computed():
    weight = nn.Parameter(torch.ones(()))

    def mean(rows):
        if rows[0, 0] == 1:
            raise RuntimeError("in the second share")
        return weight * rows.mean()

    with pytest.raises(RuntimeError, match="in the second share"):
        mean_in_shares(mean, [weight], (torch.arange(2.0).unsqueeze(1),), 2)
    assert mean_in_shares(mean, [weight], (torch.zeros(2, 1),), 2).item() == 0


def test_the_child_of_a_fork_does_not_wait_for_threads_of_its_parent():
    parents = _workers(2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"0" if _workers.cache_info().currsize else b"1")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1" and _workers(2) is parents
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("threads", "images", "shares"), [(1, 256, 1), (2, 128, 2), (2, 127, 1), (4, 256, 4), (5, 640, 1)]
)
def test_a_share_for_each_of_a_few_threads_if_there_are_images_enough(monkeypatch, threads, images, shares):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert useful_shares(nn.Linear(1, 1), torch.empty(images, 1)) == shares
    assert useful_shares(nn.Linear(1, 1), torch.empty(images, 1, device="meta")) == 1
    assert useful_shares(nn.Dropout(0.5), torch.empty(images, 1)) == 1
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool")
    assert useful_shares(nn.Linear(1, 1), torch.empty(images, 1)) == 1


class Own(nn.Identity):
    """A layer that is not known."""


AGAINST = {
    "dropout": nn.Dropout(0.1),
    "drop path": DropPath(0.1),
    "batch norm": nn.BatchNorm1d(2),
    "unknown": Own(),
}


@pytest.mark.parametrize("layer", AGAINST.values(), ids=AGAINST)
def test_chance_other_images_and_unknown_layers_stand_against_it(layer):
    assert can_be_shared(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), DropPath(0.0)))
    assert not can_be_shared(nn.Sequential(nn.Linear(2, 2), layer))


def test_a_hook_and_checkpoints_inside_stand_against_it():
    model = create_mae("vit-pico-p4", img_size=16)
    assert can_be_shared(model)
    model.encoder.set_grad_checkpointing()
    assert not can_be_shared(model)
    model.encoder.set_grad_checkpointing(False)
    with model.decoder.pred.register_forward_hook(lambda *_: None):
        assert not can_be_shared(model) and can_be_shared(model.encoder)
    assert can_be_shared(model)
