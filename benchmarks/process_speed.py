"""Threads or processes? Images per second of one process with all cores, over one process for each core.

Both train the same recipe with the same images per step: one process with a thread for each core, or as many processes
with one thread each, which have a share of every batch and average their gradients. Each round starts both once; what
counts are the steps after the first fifty. Of a recipe with masked pretraining, that is what is measured.

Run: python benchmarks/process_speed.py [RECIPE ...] [--data DIR] [--batch 128] [--rounds 3] [--steps 30]
Bar: none; it says which of the two is worth typing on a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import common

from relatum.bench.measure import interleaved
from relatum.recipes.catalog import find_recipe

RECIPES = (
    "cifar100-lt-100/balanced-softmax", "cifar100-lt-100/fast-10min", "cifar100-vit-nano/plain", "livt/cifar100-lt-100",
)  # fmt: skip
WARM = 50  # as many steps as a row of metrics.jsonl covers: the next row is of the steps that count


@dataclass(frozen=True)
class Work:
    """What both sides train: `steps` steps of `batch` images after the first ones, on all `cores`."""

    recipe: str
    data: str
    batch: int
    cores: int
    steps: int

    @property
    def pretrains(self) -> bool:
        """Whether the first stage of the recipe is measured, which does not need labels."""
        return find_recipe(self.recipe).config().pretrain.method != "none"


def words(work: Work, processes: int, out: Path) -> list[str]:
    """The command that trains in `processes` processes, which share the batch and the cores."""
    if work.batch % processes:
        raise SystemExit(f"{work.batch} images a step cannot be shared evenly by {processes} processes; set --batch")
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    share = work.batch // processes
    settings: dict[str, object] = {
        "minutes": 0, "data.batch-size": share, "train.threads": work.cores // processes,
        "train.max-steps": WARM + work.steps, "train.eval-every": 0, "out": out,
    }  # fmt: skip
    if work.pretrains:
        settings |= {"stages": "pretrain", "pretrain.batch-size": share, "pretrain.eval-every": 0}
    if work.data:
        settings["data.root"] = work.data
    pairs = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return [sys.executable, *start, "-m", "relatum", "train", work.recipe, *pairs]


def speed_in(out: Path) -> float:
    """Images per second over all processes, of the steps after the first WARM."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    counted = [row["images_per_second"] for row in rows if row["kind"] == "train" and row["step"] > WARM]
    return float(statistics.mean(counted))


def speed(work: Work, processes: int) -> float:
    """Train once and return the images per second."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = words(work, processes, out)
        env = {**os.environ, "OMP_NUM_THREADS": str(work.cores // processes)}
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout[-2000:]}")
        return speed_in(out / "pretrain" if work.pretrains else out)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("recipes", nargs="*", default=list(RECIPES), metavar="RECIPE")
    add("--data", default=os.environ.get("RELATUM_DATA", ""), help="root of the recipes' data")
    add("--batch", type=int, default=128, help="images per step of all processes together")
    add("--cores", type=int, default=os.cpu_count() or 1)
    add("--rounds", type=int, default=3)
    add("--steps", type=int, default=30)
    args = parser.parse_args(arguments)
    if args.cores < 2:
        parser.error("with one core there is nothing to choose")
    for recipe in args.recipes:
        work = Work(recipe, args.data, args.batch, args.cores, args.steps)
        ways = {
            f"one process, {args.cores} threads": partial(speed, work, 1),
            f"{args.cores} processes": partial(speed, work, args.cores),
        }
        found = interleaved(ways, args.rounds)
        threads, processes = found.values()
        print(recipe)
        for name, values in found.items():
            print(f"  {name:<26} median {statistics.median(values):7.0f} images/s")
        print(f"  processes / threads {common.ratio(processes, threads)}")


if __name__ == "__main__":
    main()
