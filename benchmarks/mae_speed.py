"""How fast masked pretraining is: against two public libraries, and against the same encoder on all tokens.

A step is forward, backward and AdamW on one batch that is always there. All have a ViT of the same sizes, a decoder
of the same sizes, the same number of hidden patches, normalised targets, the same optimizer and the same precision:

    relatum       what `create_mae` builds, as `MaskedTask` trains it
    whole batch   the same, but all threads compute one operation after the other instead of a share of the batch each
    transformers  `ViTMAEForPreTraining`
    lightly       `MaskedVisionTransformerTIMM` and `MAEDecoderTIMM`, put together as in lightly's example
    encoder       the plain encoder with a classifier of 100 classes, on all tokens, without any decoder
    all tokens    what `create_mae` builds, but nothing is hidden from its encoder; decoder and loss are the same

Each is measured once a round, in turn; a ratio is the median of the ratios of each round. Besides the seconds on the
clock the seconds of the processors are taken: others who compute at the same time disturb them less.

Run: python benchmarks/mae_speed.py [--rounds 9] [--steps 1] [--json mae_speed.json]
Bars: relatum / the faster library at most 1; relatum / encoder at most 0.45.
A library that is not installed is left out and named. --profile says where the time of a step goes instead.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import common  # noqa: F401  before torch: it sets how threads wait
import torch
from mae_rivals import RIVALS, Loss
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from relatum.batch import Batch
from relatum.bench.measure import interleaved, seconds_per_call
from relatum.models.attention import quick_attention
from relatum.models.mae import MaskedAutoencoder, create_mae, patchify, reconstruction_loss
from relatum.models.mae.patches import normalise_patches
from relatum.train import MaskedTask
from relatum.train.device import autocast

MODELS = {64: "vit-tiny-p4", 196: "vit_tiny_patch16_224"}  # by tokens; both 192 channels, 12 blocks, 3 heads
CLASSES = 100
BARS = {"faster library": 1.0, "encoder": 0.45}
Seconds = dict[str, list[float]]


class Step:
    """One training step of a model on one batch.

    Args:
        model: what is trained.
        loss: images (N, 3, H, W) -> a scalar.
        images: the batch.
        precision: float32, or bfloat16 for autocast.
    """

    def __init__(self, model: nn.Module, loss: Loss, images: Tensor, precision: str) -> None:
        self.model, self.loss, self.images, self.precision = model.train(), loss, images, precision
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)

    def __call__(self) -> None:
        """Train on the batch."""
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.precision, torch.device("cpu")):
            loss = self.loss(self.images)
        loss.backward()
        self.optimizer.step()


def masked(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """What is asked about."""
    task = MaskedTask(model, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return model, lambda images: task(Batch(images, torch.zeros(len(images)), torch.arange(len(images))))["loss"]


def whole_batch(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """A twin of `model` that computes a batch as a whole."""
    twin = copy.deepcopy(model)
    return twin, lambda images: twin(images, hidden_only=True).loss


def all_tokens(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """A twin of `model` with an encoder that sees every patch."""
    twin = copy.deepcopy(model)

    def loss(images: Tensor) -> Tensor:
        hidden = twin.draw(len(images), None, None).mask
        patches = patchify(images, twin.patch)
        ids = torch.arange(patches.shape[1]).expand(len(images), -1)
        prediction = twin.decoder(twin.encode(patches, ids), ids)
        return reconstruction_loss(prediction, normalise_patches(patches), hidden)

    return twin, loss


def plain_encoder(model: MaskedAutoencoder) -> tuple[nn.Module, Loss]:
    """The encoder of `model` as a classifier, with the way of computing attention that ours would take."""
    plain: Any = copy.deepcopy(model.encoder)
    plain.reset_classifier(CLASSES)
    plain.pos_embed.requires_grad_(True)  # as in fine-tuning

    def loss(images: Tensor) -> Tensor:
        with quick_attention(plain.blocks):
            logits = plain(images)
        return nn.functional.cross_entropy(logits.float(), torch.arange(len(images)) % CLASSES)

    return plain, loss


CONTESTANTS = {
    "relatum": masked, "whole batch": whole_batch, **RIVALS, "encoder": plain_encoder, "all tokens": all_tokens,
}  # fmt: skip


def steps_of(model: MaskedAutoencoder, batch: int, precision: str, names: list[str]) -> dict[str, Step]:
    """The step of every contestant in the sizes of `model`."""
    images = torch.randn(batch, 3, *model.encoder.patch_embed.img_size)
    return {name: Step(*CONTESTANTS[name](model), images, precision) for name in names}


def measure(steps: dict[str, Step], rounds: int, calls: int) -> tuple[Seconds, Seconds]:
    """Seconds a step of every contestant and round: on the clock, and of all processors together."""
    computed: Seconds = {name: [] for name in steps}

    def timed(name: str) -> float:
        began = time.process_time()
        seconds = seconds_per_call(steps[name], calls)
        computed[name].append((time.process_time() - began) / calls)
        return seconds

    for step in steps.values():
        step()  # the optimizer makes its state
    return interleaved({name: lambda n=name: timed(n) for name in steps}, rounds), computed


def compare(seconds: Seconds) -> dict[str, dict[str, float]]:
    """Ratios of ours to each of the others, and to the faster of the libraries."""
    rivals = [seconds[name] for name in RIVALS if name in seconds]
    others = {name: times for name, times in seconds.items() if name != "relatum"}
    if rivals:
        others["faster library"] = min(rivals, key=statistics.median)
    return {name: _ratios(seconds["relatum"], times) for name, times in others.items()}


def _ratios(over: list[float], under: list[float]) -> dict[str, float]:
    each = [a / b for a, b in zip(over, under, strict=True)]
    return {"ratio": statistics.median(each), "smallest": min(each), "largest": max(each)}


def run(model: MaskedAutoencoder, precision: str, names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measure one number of tokens in one precision."""
    clock, computed = measure(steps_of(model, args.batch, precision, names), args.rounds, args.steps)
    decoder: Any = model.decoder
    return {
        "tokens": model.grid[0] * model.grid[1],
        "precision": precision,
        "decoder": {"width": decoder.embed.out_features, "depth": len(decoder.blocks)},
        "seconds": {name: statistics.median(times) for name, times in clock.items()},
        "relatum over": compare(clock),
        "relatum over, processor seconds": compare(computed),
    }


def print_result(result: dict[str, Any]) -> None:
    decoder = "decoder {width} x {depth}".format(**result["decoder"])
    seconds = ", ".join(f"{name} {1000 * value:.0f}" for name, value in result["seconds"].items())
    print(f"{result['tokens']} tokens, {decoder}, {result['precision']}; median ms: {seconds}")
    for name, found in result["relatum over"].items():
        spread = f"({found['smallest']:.3f} to {found['largest']:.3f})"
        computed = result["relatum over, processor seconds"][name]["ratio"]
        bar = f"   bar: at most {BARS[name]:g}" if name in BARS else ""
        print(f"  relatum / {name:<15}{found['ratio']:.3f} {spread:<18}{computed:>10.3f}{bar}", flush=True)


def print_profile(step: Step, rows: int = 16) -> None:
    """Milliseconds of the costliest operations in one step."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    costs = {event.key: event.self_cpu_time_total / 1000 for event in profiler.key_averages()}
    for key in sorted(costs, key=lambda key: -costs[key])[:rows]:
        print(f"  {costs[key]:>8.1f} ms   {key[:90]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    others = [name for name in CONTESTANTS if name != "relatum"]
    add("--tokens", type=int, nargs="+", choices=tuple(MODELS), default=list(MODELS))
    add("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    add("--against", nargs="+", choices=others, default=others)
    add("--batch", type=int, default=64)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=9)
    add("--steps", type=int, default=1, help="steps timed together in each round")
    add("--json", default="", help="write all results to this file")
    add("--profile", action="store_true", help="print where the time of a step goes instead")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    absent = [name for name in args.against if name in RIVALS and not importlib.util.find_spec(name)]
    for name in absent:
        print(f"{name} is not installed and not compared; pip install {name}")
    names = ["relatum", *(name for name in args.against if name not in absent)]
    packages = ("torch", "timm", *(name for name in names if name in RIVALS))
    versions = {name: importlib.import_module(name).__version__ for name in packages}
    print(f"batch {args.batch}, {args.threads} threads, " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    print(f"{'ratio of a training step':<27}clock (rounds)              processor")
    results = []
    for tokens in args.tokens:
        torch.manual_seed(0)
        model = create_mae(MODELS[tokens])
        for precision in args.precisions:
            if args.profile:
                for name, step in steps_of(model, args.batch, precision, names).items():
                    print(f"{tokens} tokens, {precision}, {name}")
                    print_profile(step)
                continue
            results.append(run(model, precision, names, args))
            print_result(results[-1])
    if args.json:
        head = {"batch": args.batch, "threads": args.threads, "rounds": args.rounds, "versions": versions}
        Path(args.json).write_text(json.dumps({**head, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
