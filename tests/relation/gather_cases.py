"""Hosts, specs and batches on which several processes must give what one gives; `one_pass` runs either side."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relatum import BatchFormer, BatchFormerV2, attach
from relatum.relation.streams import related_count

CLASSES = 4
V1 = partial(BatchFormer, dropout=0.0)
V2 = partial(BatchFormerV2, dropout=0.0)
TWO = ("blocks.0", "blocks.2")


class Block(nn.Module):
    """Mix the tokens of a sample, then its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Linear(5, 5), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2).tanh()
        return x + self.channels(x).tanh()


class Tokens(nn.Module):
    """A class token, four patches, three blocks, which gradient checkpointing may compute twice."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8))
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.embed(x)], 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x[:, 0] + x.mean(1))


class Pixels(nn.Module):
    """Feature maps (N, C, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage(self.stem(x).tanh()).tanh().mean((2, 3)))


def flat() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def frozen() -> nn.Module:
    """What comes before the first site does not train: the features that travel need no gradient."""
    model = Tokens()
    for part in (model.embed, model.blocks[0]):
        part.requires_grad_(False)
    model.cls_token.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Case:
    """One host with one spec; `spec.gather` is set by `one_pass`."""

    spec: Any
    host: Any = flat
    shape: tuple[int, ...] = (6,)
    padded: bool = False
    channels_last: bool = False
    input_gradient: bool = True


tokens = partial(Case, host=Tokens, shape=(4, 6))
pixels = partial(Case, host=Pixels, shape=(3, 9, 9))
CASES = {
    "v1": Case(V1()),
    "v1 stable": Case(V1(variant="stable", hidden=8)),
    "v1 two layers": Case(V1(layers=2)),
    "v1 fraction": Case(V1(related_fraction=0.5)),
    "v1 fraction, two layers": Case(V1(related_fraction=0.5, layers=2)),
    "v1 fraction, two stable layers": Case(V1(related_fraction=0.5, layers=2, variant="stable")),
    "v1 single stream": Case(V1(shared_classifier=False)),
    "v2": tokens(V2()),
    "v2 paper": tokens(V2(variant="paper", heads=2)),
    "v2 two layers": tokens(V2(layers=2)),
    "v2 two paper layers": tokens(V2(layers=2, variant="paper", heads=2)),
    "v2 two sites": tokens(V2(at=TWO)),
    "v2 shared module": tokens(V2(at=TWO, share=True)),
    "v2 single stream": tokens(V2(at=TWO, two_streams=False)),
    "v2 class token": tokens(V2(at=TWO, tokens="class")),
    "v2 patches": tokens(V2(at=TWO, tokens="patch")),
    "v2 fraction": tokens(V2(at=TWO, related_fraction=0.4)),
    "v2 fraction, two layers": tokens(V2(at=TWO, related_fraction=0.4, layers=2)),
    "v2 padding": tokens(V2(at=TWO), padded=True),
    "v2 padding, fraction, two layers": tokens(V2(at=TWO, related_fraction=0.4, layers=2), padded=True),
    "v2 pixels": pixels(V2(at="stage", width=8)),
    "v2 pixels, channels last": pixels(V2(at="stage", width=8), channels_last=True),
    "v2 recomputed": tokens(V2(at=("blocks.1",)), host=partial(Tokens, recompute=True)),
    "v2 frozen features": tokens(V2(at="blocks.0"), host=frozen, input_gradient=False),
}


def batch(case: Case, samples: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs, labels and a padding mask; the same for everyone, who takes a part."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, *case.shape, generator=generator, dtype=torch.float64)
    y = torch.arange(samples) % CLASSES
    mask = torch.rand(samples, 5, generator=generator) < 0.4
    return x, y, mask if case.padded else None


def one_pass(
    case: Case, samples: int, part: slice, *, gather: bool = False, rows: Tensor | None = None, scale: float = 1.0
) -> dict[str, Any]:
    """One forward and backward pass on `part` of a batch of `samples`.

    Args:
        case: what to run.
        samples: size of the batch of all processes together.
        part: the samples of this process.
        gather: whether to relate across processes.
        rows: the related samples, where they are not to be drawn.
        scale: the loss is the sum over the rows of this process times `scale`.
    """
    # Each process rounds its number of related samples up: together they may be more than a share of all.
    fraction = case.spec.related_fraction if rows is None else len(rows) / samples
    torch.manual_seed(3)
    model = case.host().double()
    relation = attach(model, replace(case.spec, gather=gather, related_fraction=fraction))
    x, y, mask = batch(case, samples)
    x = x[part].clone(memory_format=torch.channels_last if case.channels_last else torch.contiguous_format)
    x.requires_grad_(case.input_gradient)
    torch.manual_seed(100 + part.start)
    if rows is not None:
        relation.choice._draw = lambda n, device: rows
    with nullcontext() if mask is None else relation.padding(mask[part]):
        output = model(x)
    (functional.cross_entropy(output, relation.targets(y[part]), reduction="sum") * scale).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return {
        "output": output.detach(),
        "chosen": torch.arange(len(x)) if relation.chosen is None else relation.chosen,
        "input": x.grad if case.input_gradient else torch.zeros_like(x),
        "gradients": torch.cat([g.flatten() for g in gradients]),
        "relation": sum(p.numel() for p in relation.module.parameters()),
    }


def all_rows(spec: Any, sizes: tuple[int, ...]) -> int:
    """Rows of the outputs of all processes together."""
    related = sum(related_count(n, spec.related_fraction) for n in sizes)
    return sum(sizes) + related if spec.keeps_plain else related


def parts(sizes: tuple[int, ...]) -> list[slice]:
    """The samples of each process, one after the other."""
    return [slice(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(len(sizes))]
