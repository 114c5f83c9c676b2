"""Does `torch.compile` pay back on a CPU? A training step compiled and as it is, in turn, and the seconds of compiling.

Run: python benchmarks/compile_speed.py [--models resnet32-cifar fastnet-s vit-nano-p4] [--rounds 10] [--threads 2]
Bar: none. It pays where the time that steps save over a whole run is worth more than compiling: the last words say
after how many minutes of training. What an earlier process compiled is not used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import common
import torch
from torch import Tensor, nn

from relatum import create_model
from relatum.bench.measure import interleaved, seconds_per_call
from relatum.models.attention import quick_attention
from relatum.train.allocator import keep_freed_memory

NAMES = ("resnet32-cifar", "fastnet-s", "vit-nano-p4")


def training_step(model: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """A step on one batch of noise, in bfloat16, channels-last, as the loop takes it."""
    model.train().to(memory_format=torch.channels_last)
    images = torch.randn(common.BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(100, (common.BATCH,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16), quick_attention(model):
            logits = forward(images)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(logits.float(), targets).backward()
        optimizer.step()

    return step


def compare(name: str, rounds: int, steps: int) -> None:
    """Print one line for the model `name`."""
    plain = create_model(name, 100)
    eager = training_step(plain, plain)
    other = create_model(name, 100)
    for part in other.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False  # what `quick_attention` chooses for so few tokens; a hook would break the graph
    compiled = training_step(other, torch.compile(other))
    began = time.perf_counter()
    compiled()
    compiling = time.perf_counter() - began
    eager()
    ways = {
        "eager": lambda: seconds_per_call(eager, steps),
        "compiled": lambda: seconds_per_call(compiled, steps),
    }
    seconds = interleaved(ways, rounds)
    gain = 1 - statistics.median(c / e for c, e in zip(seconds["compiled"], seconds["eager"], strict=True))
    pays = f"after {compiling / gain / 60:.0f} minutes" if gain > 0 else "never"
    faster = common.ratio(seconds["eager"], seconds["compiled"])
    print(f"{name:<15} {faster} times as fast; compiling {compiling:.0f} s; pays back {pays}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=NAMES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = fresh
        for name in args.models:
            compare(name, args.rounds, args.steps)


if __name__ == "__main__":
    main()
