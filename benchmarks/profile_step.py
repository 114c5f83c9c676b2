"""Where the time of a training step goes, by kind of work, for ResNet-32, a small ViT and masked pretraining.

The loop is that of `relatum train`, on generated images; torch's profiler notes every operation, and each is counted
for the part of the loop that called it (input, optimizer, norm of the gradient, moving average, bookkeeping) or, in
the forward and backward pass, for its kind. "python and dispatch" is the time in that pass in which no operation runs.
The profiler itself makes small operations look longer than they are: read shares, not seconds.

Run: python benchmarks/profile_step.py [--steps 5] [--threads 1] [--precision float32] [--operations 12]
No bar: it says where to look.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from relatum.bench.images import with_images, write_images
from relatum.bench.subjects import DEFAULTS, Subject, endless
from relatum.recipes.catalog import find_recipe

PASSES = "forward and backward"
STEP = "rest of the step"
# By kind, parts of the names of operations; the first that fits counts.
KINDS = {
    "convolution": ("conv",),
    "matrix product": ("addmm", "aten::mm", "bmm", "baddbmm", "linear"),
    "attention": ("attention", "softmax"),
    "normalisation": ("batch_norm", "layer_norm", "BatchNorm", "LayerNorm"),
    "activation": ("relu", "gelu", "threshold"),
    "copies and casts": ("copy", "clone", "contiguous", "_to_copy", "cat", "index", "gather", "zero", "fill", "empty"),
    "additions and the like": ("add", "mul", "div", "sub", "sum", "mean", "pow", "neg", "where", "sqrt"),
    "random numbers": ("rand", "bernoulli", "dropout", "uniform", "normal_"),
    "pooling": ("pool",),
}


def subject_of(recipe: str, folder: Path, args: argparse.Namespace) -> Subject:
    """A default subject of `relatum bench` in the settings asked for."""
    config = with_images(find_recipe(recipe).config(), folder)
    train = replace(config.train, precision=args.precision, threads=args.threads, ema=args.ema)
    data, first = replace(config.data, batch_size=args.batch), replace(config.pretrain, batch_size=args.batch)
    return Subject(recipe, replace(config, train=train, data=data, pretrain=first), DEFAULTS[recipe])


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, under a name that the profiler sees."""

    @functools.wraps(function)
    def under_name(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return under_name


def mark_parts(loop: Any) -> None:
    """Give the parts of the loop names."""
    loop.optimizer.step = marked("optimizer", loop.optimizer.step)
    loop._clip = marked("norm of the gradient", loop._clip)
    loop._gradients = marked(PASSES, loop._gradients)
    loop.guard.begin = marked("guard", loop.guard.begin)
    loop.log.add = marked("log", loop.log.add)
    if loop.ema is not None:
        loop.ema.update = marked("moving average", loop.ema.update)


def kind_of(event: Any, parts: frozenset[str]) -> str:
    """Of which kind the own time of an event is."""
    within: list[str] = []
    at = event
    while at is not None:
        if at.name in parts:
            within.append(at.name)
        at = at.cpu_parent
    part = within[-2] if len(within) > 1 else within[-1] if within else STEP  # the outermost is the step itself
    if part != PASSES:
        return part
    if event.name == PASSES or event.name.startswith(("autograd::engine", "Torch-Compiled")):
        return "python and dispatch"
    return next((kind for kind, names in KINDS.items() if any(name in event.name for name in names)), "other")


def shares(subject: Subject, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by kind, and by operation within the passes, of `steps` steps."""
    task, loaders = subject.build()
    loop, batches = subject.trainer(task, loaders), endless(loaders)
    loop._step([next(batches)])
    mark_parts(loop)
    names = frozenset({STEP, PASSES, "optimizer", "norm of the gradient", "guard", "log", "moving average", "input"})
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            with record_function(STEP):
                with record_function("input"):
                    batch = next(batches)
                loop._step([batch])
    by_kind, by_operation = defaultdict[str, float](float), defaultdict[str, float](float)
    for event in profiler.events():
        by_kind[kind_of(event, names)] += event.self_cpu_time_total / 1e6
        by_operation[event.name] += event.self_cpu_time_total / 1e6
    return dict(by_kind), dict(by_operation)


def show(name: str, by_kind: dict[str, float], by_operation: dict[str, float], operations: int, steps: int) -> None:
    total = sum(by_kind.values())
    print(f"{name}: {1000 * total / steps:.0f} ms a step under the profiler")
    for kind in sorted(by_kind, key=lambda kind: -by_kind[kind]):
        print(f"  {by_kind[kind] / total:6.1%}   {kind}")
    for operation in sorted(by_operation, key=lambda name: -by_operation[name])[:operations]:
        print(f"    {by_operation[operation] / total:6.1%}   {operation[:90]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--recipes", nargs="+", choices=tuple(DEFAULTS), default=list(DEFAULTS))
    add("--steps", type=int, default=5)
    add("--batch", type=int, default=128)
    add("--threads", type=int, default=1)
    add("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    add("--ema", type=float, default=0.0, help="decay of the moving average of the weights; 0 is off")
    add("--operations", type=int, default=0, help="also list this many single operations")
    return parser.parse_args()


def main() -> None:
    args = parse()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), test=100)
        for recipe in args.recipes:
            subject = subject_of(recipe, Path(folder), args)
            by_kind, by_operation = shares(subject, args.steps)
            show(
                f"{subject.name}, {torch.get_num_threads()} threads", by_kind, by_operation, args.operations, args.steps
            )


if __name__ == "__main__":
    main()
