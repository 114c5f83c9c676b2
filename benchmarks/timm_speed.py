"""Images per second against timm's own training script: same model, images, batch, augmentation, precision, threads.

The script is not in timm's package: get the sources of the installed version and name its train.py. Images of noise are
written to a folder of PNG files that both read: timm through its workers, relatum as it does, into memory at the
start. Both crop, resize and flip at random, train with SGD, momentum and weight decay, and compute in channels-last
layout. Each round starts timm's script once and reads the seconds of every update from what it prints.

Run: python benchmarks/timm_speed.py --timm-train pytorch-image-models/train.py [--model resnet18] [--rounds 5]
Bar: relatum at least 1.2 x timm.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import common
import numpy as np
import timm
import torch
from PIL import Image

from relatum.bench.measure import interleaved
from relatum.bench.speed import loop_speed
from relatum.bench.subjects import Subject, endless
from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.train.device import pick_precision

SIDE, CLASSES, WORKERS, BAR = 32, 100, 2, 1.2
SKIPPED = 2 * WORKERS + 2  # updates on which the workers' head start is used up
OF_RELATUM = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # it sets how threads wait; timm runs as it comes
UPDATE = re.compile(r"Train: \d+ \[\s*(\d+)/.*?Time: ([\d.]+)s")


def write_folder(root: Path, images: int, held_out: int) -> None:
    """Write noise as PNG files: root/train/CLASS/..., root/val/CLASS/..."""
    rng = np.random.default_rng(0)
    for split, count in (("train", images), ("val", held_out)):
        for number in range(count):
            place = root / split / f"{number % CLASSES:03d}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(place / f"{number}.png")


def timm_words(script: Path, data: Path, out: Path, args: argparse.Namespace, precision: str) -> list[str]:
    """The command that trains one epoch with timm's script."""
    sized = ["--model-kwargs", f"img_size={SIDE}"] if args.model.startswith("vit") else []
    amp = ["--amp", "--amp-dtype", "bfloat16"] if precision == "bfloat16" else []
    device = ["--device", "cpu"] if "--device" in script.read_text(encoding="utf-8") else []
    settings = {
        "model": args.model, "num-classes": CLASSES, "batch-size": args.batch, "workers": WORKERS, "output": out,
        "opt": "momentum", "lr": 0.01, "momentum": 0.9, "weight-decay": 5e-4, "epochs": 1, "warmup-epochs": 0,
        "cooldown-epochs": 0, "smoothing": 0, "color-jitter": 0, "train-interpolation": "bicubic", "log-interval": 1,
    }  # fmt: skip
    pairs = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    size = ["--input-size", "3", str(SIDE), str(SIDE), "--scale", "0.2", "1.0", "--channels-last"]
    return [sys.executable, str(script), str(data), *pairs, *size, *sized, *amp, *device]


def speed_from(text: str, batch: int) -> float:
    """Images per second in what timm's script printed, without the first updates."""
    seconds = [float(taken) for number, taken in UPDATE.findall(text) if int(number) >= SKIPPED]
    if not seconds:
        raise SystemExit(f"timm's script printed no update after the first {SKIPPED}; its last words:\n{text[-2000:]}")
    return batch * len(seconds) / sum(seconds)


def timm_speed(words: list[str], args: argparse.Namespace) -> float:
    """Run timm's script once."""
    env = {name: value for name, value in os.environ.items() if name not in OF_RELATUM}
    env |= {"OMP_NUM_THREADS": str(args.threads), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"timm's script ended with code {done.returncode}; its last words:\n{done.stdout[-2000:]}")
    return speed_from(done.stdout, args.batch)


def ours(data: Path, args: argparse.Namespace, precision: str) -> Subject:
    """The same training in relatum."""
    config = RunConfig(
        data=DataConfig(kind="folder", root=str(data), image_size=SIDE, augment="crop", batch_size=args.batch),
        model=ModelConfig(name=args.model),
        train=TrainConfig(lr=0.01, threads=args.threads, precision=precision, device="cpu"),  # type: ignore[arg-type]
    )
    return Subject("timm's settings", config, "finetune")


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--timm-train", type=Path, required=True, metavar="PATH", help="train.py of timm's sources")
    add("--model", default="resnet18", help="a name that timm and relatum share")
    add("--batch", type=int, default=128)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=20)
    args = parser.parse_args(words)
    if not args.timm_train.is_file():
        parser.error(f"there is no file {args.timm_train}; check out timm {timm.__version__} and name its train.py")
    return args


def main(words: list[str] | None = None) -> None:
    args = parse(words)
    precision = pick_precision(args.precision, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "images", Path(folder) / "timm"
        write_folder(data, args.batch * (SKIPPED + args.steps), args.batch)
        subject = ours(data, args, precision)
        task, loaders = subject.build()
        loop, batches = subject.trainer(task, loaders), endless(loaders)
        command = timm_words(args.timm_train, data, out, args, precision)
        ways = {
            "timm": lambda: timm_speed(command, args),
            "relatum": lambda: loop_speed(loop, batches, args.steps),
        }
        speed = interleaved(ways, args.rounds)
    print(
        f"{args.model} at {SIDE} px, batch {args.batch}, {args.threads} threads, {precision}, timm {timm.__version__}"
    )
    for name, values in speed.items():
        print(f"{name:<8} median {statistics.median(values):7.0f} images/s")
    print(f"relatum / timm {common.ratio(speed['relatum'], speed['timm'])}   bar: at least {BAR}")


if __name__ == "__main__":
    main()
