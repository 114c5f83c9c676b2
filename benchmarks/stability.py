"""Does a relation in every block make training diverge? Paper's layer, stable layer and no relation, side by side.

A small ViT with BatchFormerV2 after all blocks trains in low precision with AdamW, without gradient clipping, at
learning rates from normal to far too high, over several seeds. A run has diverged when

  non-finite  the loss or the norm of the gradient, in float32 as training loops take it, was not finite at some step
              (the run ends there; the JSON tells whether single entries were, too), or
  blown up    the mean loss of its last 20 steps is above ln(K) + 0.5, worse than knowing nothing.

A run that has not diverged but ends below 1.5 times chance has learned nothing and is counted as "stuck". Accuracy is
that of the plain stream on held-out images, mean and standard deviation over the runs that did not diverge.

Attention of the host and of the paper's layer is computed in the low precision, softmax included; the stable layer
takes its own in float32 whatever the precision.

What ten seeds of 80 steps showed (benchmarks/README.md has the table): up to 1e-2 all three train alike. From 3e-2 on
the gradient explodes with the paper's layer (norms of 1e14 at 3e-2, of 1e18 at 1e-1, where every run ends
non-finite); with the stable layer it stays where it is without a relation, below 100. At these rates the un-attached
model learns nothing either, so at this scale the crash costs no accuracy that was there to have.

Single trials of why: it needs the host; with its blocks frozen nothing explodes, while freezing the gains, the
feed-forward part, or queries and keys of the relation weakens it at most. A likely reason: the blocks of the host add
to a stream that grows with them, and the paper's layer sets the related stream back to unit size after every block,
so that each block weighs fully again. The stable layer never rescales the stream. Taking single precautions away from
it (scale, normalised queries and keys, float32) did not make it diverge in one seed each.

Run: RELATUM_DATA=... python benchmarks/stability.py --out stability.jsonl
Runs that are in the --out file are not repeated: the same command continues, and several processes may share the work
with different --first-seed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import common
import stability_variants as variants
import timm
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from relatum import BatchFormerV2, attach
from relatum.config import DataConfig
from relatum.data.memory import decode_all
from relatum.data.preprocess import Preprocess
from relatum.data.splits import open_splits
from relatum.relation import Relation

CLASSES, LAST = 20, 20
MARGIN_BLOWN, TIMES_CHANCE = 0.5, 1.5
IMAGE, PATCH = 32, 8


@dataclass(frozen=True)
class Setting:
    """What one run depends on; its JSON is what makes two runs the same."""

    variant: str
    lr: float
    seed: int
    steps: int
    depth: int
    width: int
    heads: int
    batch: int
    dropout: float
    share: bool
    warmup: int
    weight_decay: float
    precision: str
    data: str


@dataclass(frozen=True)
class Images:
    """Normalised images and class ids of the training and the test split."""

    train: Tensor
    train_targets: Tensor
    test: Tensor
    test_targets: Tensor


def load_images(root: str) -> tuple[Images, str]:
    """The first 20 classes of CIFAR-100 cut to imbalance 10, or the generated shapes; and words for which."""
    real = bool(root) and Path(root).is_dir()
    config = DataConfig(kind="cifar100", root=root, normalise="cifar") if real else DataConfig(kind="shapes")
    if real:
        config = DataConfig(**{**asdict(config), "long_tail": "exponential", "imbalance": 10.0, "largest": 500})
    splits, normalise = open_splits(config), Preprocess.from_config(config).normalise
    parts: list[Tensor] = []
    for name in ("train", "test"):
        source = splits[name].subset(splits[name].targets < CLASSES)
        parts += [normalise(decode_all(source, IMAGE, IMAGE, threads=1)), torch.from_numpy(source.targets)]
    return Images(*parts), f"{'cifar100-if10' if real else 'shapes'}-{CLASSES}"


def build(setting: Setting) -> tuple[nn.Module, Relation | None]:
    """The host, with the relation of the variant after all blocks."""
    sizes: dict[str, Any] = {"embed_dim": setting.width, "depth": setting.depth, "num_heads": setting.heads}
    model = timm.create_model("vit_tiny_patch16_224", img_size=IMAGE, patch_size=PATCH, num_classes=CLASSES, **sizes)
    if setting.variant == "plain":
        return model.train(), None
    layer, change = variants.VARIANTS[setting.variant]
    relation = attach(model, BatchFormerV2(at="all", share=setting.share, dropout=setting.dropout, variant=layer))
    change(relation)
    return model.train(), relation


def batches(images: Images, setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches in an order that the seed fixes, the same for all variants."""
    generator = torch.Generator().manual_seed(setting.seed)
    while True:
        order = torch.randperm(len(images.train), generator=generator)
        for index in order[: len(order) // setting.batch * setting.batch].split(setting.batch):
            yield images.train[index], images.train_targets[index]


def rate(setting: Setting, step: int) -> float:
    """Linear warm-up, then cosine to zero."""
    if step < setting.warmup:
        return setting.lr * (step + 1) / setting.warmup
    done = (step - setting.warmup) / max(setting.steps - setting.warmup, 1)
    return setting.lr * 0.5 * (1 + math.cos(math.pi * done))


def precise(setting: Setting) -> Any:
    """The context of a forward pass."""
    dtype = torch.float16 if setting.precision == "float16" else torch.bfloat16
    return torch.autocast("cpu", dtype=dtype, enabled=setting.precision != "float32")


def train(setting: Setting, images: Images) -> dict[str, Any]:
    """Train once and tell how it went."""
    torch.manual_seed(setting.seed)
    model, relation = build(setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.lr, weight_decay=setting.weight_decay, fused=True)
    losses: list[float] = []
    largest, broken_at, entries, began = 0.0, -1, False, time.perf_counter()
    for step, (inputs, targets) in zip(range(setting.steps), batches(images, setting), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate(setting, step)
        optimizer.zero_grad(set_to_none=True)
        with precise(setting):
            logits = model(inputs)
        targets = targets if relation is None else relation.targets(targets)
        loss = nn.functional.cross_entropy(logits.float(), targets)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        losses.append(float(loss.detach()))
        if not (math.isfinite(losses[-1]) and math.isfinite(norm)):
            broken_at, entries = step, not all(bool(gradient.isfinite().all()) for gradient in gradients)
            break
        largest = max(largest, norm)
        optimizer.step()
    score = 0.0 if broken_at >= 0 else accuracy(model, images, setting)
    final = statistics.fmean(losses[-LAST:])
    return {
        "outcome": outcome(broken_at, final, score),
        "accuracy": score,
        "broken_at": broken_at,
        "broken_entries": entries,
        "largest_gradient": largest,
        "loss": final if math.isfinite(final) else None,
        "seconds": time.perf_counter() - began,
    }


def outcome(broken_at: int, final: float, score: float) -> str:
    """Name how a run ended."""
    if broken_at >= 0:
        return "non-finite"
    if final > math.log(CLASSES) + MARGIN_BLOWN:
        return "blown up"
    return "stuck" if score < TIMES_CHANCE * 100 / CLASSES else "learned"


def accuracy(model: nn.Module, images: Images, setting: Setting) -> float:
    """Accuracy in percent on the test images: in evaluation mode there is the plain stream only."""
    model.eval()
    with torch.inference_mode(), precise(setting):
        right = [
            (model(inputs).argmax(-1) == targets).sum()
            for inputs, targets in zip(images.test.split(500), images.test_targets.split(500), strict=True)
        ]
    return 100.0 * float(torch.stack(right).sum()) / len(images.test)


def table(results: list[dict[str, Any]]) -> str:
    """One row for each learning rate and variant."""
    head = f"{'lr':>7}  {'variant':<20}{'diverged':>9}{'non-finite':>12}{'blown up':>10}{'stuck':>7}"
    lines = [f"{head}   {'accuracy %':<14}largest gradient: median, worst"]
    keys = sorted({(r["lr"], variants.order(r["variant"]), r["variant"]) for r in results})
    for lr, _, variant in keys:
        runs = [r for r in results if (r["lr"], r["variant"]) == (lr, variant)]
        count = {name: sum(r["outcome"] == name for r in runs) for name in ("non-finite", "blown up", "stuck")}
        diverged = count["non-finite"] + count["blown up"]
        kept = [r["accuracy"] for r in runs if r["outcome"] in ("stuck", "learned")]
        spread = f" ± {statistics.stdev(kept):.1f}" if len(kept) > 1 else ""
        score = f"{statistics.fmean(kept):.1f}{spread}" if kept else "n/a"
        gradients = [r["largest_gradient"] for r in runs]
        row = f"{lr:>7g}  {variant:<20}{f'{diverged}/{len(runs)}':>9}{count['non-finite']:>12}{count['blown up']:>10}"
        norms = f"{statistics.median(gradients):>10.3g}{max(gradients):>12.3g}"
        lines.append(f"{row}{count['stuck']:>7}   {score:<14}{norms}")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, default=10, help="number of seeds (default 10)")
    add("--first-seed", type=int, default=0, help="the first of them")
    add("--lrs", default="1e-3,3e-3,1e-2,3e-2,1e-1", help="learning rates, with commas")
    add("--variants", default="plain,paper,stable", help=f"of {', '.join(variants.NAMES)}")
    add("--steps", type=int, default=100)
    add("--depth", type=int, default=12, help="blocks of the ViT")
    add("--width", type=int, default=64)
    add("--heads", type=int, default=2)
    add("--batch", type=int, default=32, help="images per step: the samples that attend to each other")
    add("--dropout", type=float, default=0.5, help="inside the relation")
    add("--share", action=argparse.BooleanOptionalAction, default=True, help="one module for all blocks")
    add("--warmup", type=int, default=10, help="steps of linear warm-up; 0 for none")
    add("--weight-decay", type=float, default=0.05)
    add(
        "--precision",
        choices=("bfloat16", "float16", "float32"),
        default="bfloat16",
        help="float16 is very slow on CPUs",
    )
    add("--data", default=os.environ.get("RELATUM_DATA", ""), help="folder with cifar-100-python; without it, shapes")
    add("--out", default="", help="JSON lines; runs found there are not repeated")
    add("--threads", type=int, default=1)
    args = parser.parse_args()
    unknown = sorted(set(args.variants.split(",")) - set(variants.NAMES))
    if unknown:
        parser.error(f"unknown variant {unknown[0]}; there are {', '.join(variants.NAMES)}")
    return args


def settings_of(args: argparse.Namespace, data: str) -> list[Setting]:
    """All runs asked for: seed by seed, so that an unfinished table is even."""
    fixed = ("steps", "depth", "width", "heads", "batch", "dropout", "share", "warmup", "weight_decay", "precision")
    same = {name: getattr(args, name) for name in fixed}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    rates = [float(lr) for lr in args.lrs.split(",")]
    ways = product(seeds, rates, args.variants.split(","))
    return [Setting(variant=variant, lr=lr, seed=seed, data=data, **same) for seed, lr, variant in ways]


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    # Else torch takes the softmax of low-precision attention in float32 on this path.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    images, data = load_images(args.data)
    settings = settings_of(args, data)
    results: list[dict[str, Any]] = []
    for number, setting in enumerate(settings, 1):
        wanted = asdict(setting)
        done = next((r for r in common.kept_results(args.out) if {k: r.get(k) for k in wanted} == wanted), None)
        if done is None:
            # This path is also several times faster than the fused one for sequences as short as these.
            with sdpa_kernel(SDPBackend.MATH):
                done = {**wanted, **train(setting, images)}
            common.keep_result(args.out, done)
            print(f"[{number}/{len(settings)}] lr {setting.lr:g} {setting.variant} seed {setting.seed}: ", end="")
            print(f"{done['outcome']}, {done['accuracy']:.1f} %, {done['seconds']:.1f} s", flush=True)
        results.append(done)
    shared = "one shared module" if args.share else "a module each"
    print(f"\nViT of {args.depth} blocks, width {args.width}, {data}, {args.precision}, batch {args.batch}, ", end="")
    print(
        f"{args.steps} steps, warm-up {args.warmup}, dropout {args.dropout:g}, {shared}, chance {100 / CLASSES:.0f} %"
    )
    print(table(results))


if __name__ == "__main__":
    main()
