"""Does memory grow while training goes on? 3,000 steps with a relation, evaluation and checkpoints, watched.

The public `fit` trains a small ViT with BatchFormer on generated long-tailed shapes, with a moving average of the
weights, an evaluation and a checkpoint after every epoch of 62 steps, and a progress bar that draws into nothing.
It does so twice, each time in a process of its own: with the images in memory, and with them read by two loader
processes, which are started anew for every epoch and every evaluation.

The resident memory of the process, and of the largest of its loader processes, is noted every 50 steps. The first 500
steps may fill caches; after them the median of the next fifth of the steps is compared with that of the last fifth.
Medians, because one note in the middle of an evaluation may be larger than the others; the largest is printed too.

Run: OMP_NUM_THREADS=1 python benchmarks/soak.py [--steps 3000] [--json FILE]
Bar: both grow by less than 2 %, and no more loader processes are alive than were asked for. Exit code 1 if missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from relatum import BatchFormer, attach, create_model
from relatum.config import DataConfig, TrainConfig
from relatum.data.loaders import Loaders, loaders_from_splits
from relatum.data.shapes import shapes_source
from relatum.objectives import BalancedSoftmax
from relatum.train import ClassificationTask, Display, fit

PHASES = {"memory": 0, "workers": 2}  # and the loader processes of each
EVERY, SETTLED, BAR = 50, 500, 0.02
COUNTS, BATCH = (300, 210, 150, 105, 75, 54, 39, 27, 20, 15), 16


@dataclass(frozen=True)
class Note:
    """What was seen after a step: MB of this process and of its largest loader process, and their number."""

    step: int
    own: float
    worker: float
    workers: int


@dataclass(frozen=True)
class Growth:
    """Median MB of the notes after settling and at the end, the largest, and the growth between the medians."""

    early: float
    late: float
    largest: float
    share: float


class Watch(Display):
    """A progress bar that notes the memory while it is told of the steps."""

    def __init__(self, every: int) -> None:
        super().__init__(console=Console(file=Path(os.devnull).open("w"), force_terminal=True))  # noqa: SIM115
        self.every, self.notes = every, list[Note]()

    def step(self, done: int, info: str) -> None:
        """Move the bar; every so often look at the memory."""
        super().step(done, info)
        if done % self.every == 0:
            workers = [size for size in map(resident_mb, children()) if size]
            self.notes.append(Note(done, resident_mb(os.getpid()), max(workers, default=0.0), len(workers)))


def resident_mb(process: int) -> float:
    """Resident memory of a process in MB (10^6 bytes); 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = status.split("VmRSS:")  # a process that has ended and is not yet collected has none
    return int(found[1].split()[0]) * 1.024 / 1000 if len(found) > 1 else 0.0


def children() -> list[int]:
    """Processes that this one has started and that have not been collected."""
    listed = [path.read_text(encoding="utf-8") for path in Path("/proc/self/task").glob("*/children")]
    return [int(word) for words in listed for word in words.split()]


def loaders(workers: int, epochs: int) -> Loaders:
    """Some 1,000 long-tailed training images and 200 to evaluate on, in memory or through loader processes."""
    splits = {"train": shapes_source(COUNTS), "val": shapes_source(20, classes=len(COUNTS), split="val")}
    memory = "never" if workers else "always"
    config = DataConfig(batch_size=BATCH, workers=workers, memory=memory, cutout=8, mixup=0.2)
    return loaders_from_splits(splits, config, epochs=epochs)


def soak(phase: str, steps: int, every: int) -> list[Note]:
    """Train for `steps` steps and return what was noted."""
    epochs = math.ceil(steps / (sum(COUNTS) // BATCH))
    data = loaders(PHASES[phase], epochs)
    model = create_model("vit-pico-p8", len(COUNTS))
    task = ClassificationTask(model, BalancedSoftmax(data.prior), attach(model, BatchFormer()))
    config = TrainConfig(epochs=epochs, lr=0.02, ema=0.99, max_steps=steps, precision="float32")
    watch = Watch(every)
    with tempfile.TemporaryDirectory(prefix="relatum-soak-") as folder:
        fit(task, data, config, out=folder, display=watch)
    return watch.notes


def growth(notes: Sequence[Note], what: str, settled: int) -> Growth:
    """Compare the fifth of the steps after `settled` with the last fifth."""
    values = {note.step: getattr(note, what) for note in notes if note.step > settled}
    last = max(values)
    window = (last - settled) / 5
    early = statistics.median(value for step, value in values.items() if step <= settled + window)
    late = statistics.median(value for step, value in values.items() if step > last - window)
    return Growth(early, late, max(values.values()), late / early - 1)


def judge(phase: str, notes: Sequence[Note], settled: int, bar: float = BAR) -> tuple[dict[str, Growth], list[str]]:
    """Return the growth of this process and of its loader processes, and which bars they miss."""
    kinds = ["own", "worker"] if PHASES[phase] else ["own"]
    found = {kind: growth(notes, kind, settled) for kind in kinds}
    missed = [f"{kind} memory grows by {g.share:.2%}, above {bar:.0%}" for kind, g in found.items() if g.share >= bar]
    alive = max(note.workers for note in notes)
    if alive > PHASES[phase]:
        missed.append(f"{alive} loader processes alive, asked for {PHASES[phase]}")
    return found, missed


def run_phase(phase: str, steps: int, every: int) -> list[Note]:
    """Soak in a process of its own, so that the second phase does not begin with what the first has left."""
    command = [sys.executable, __file__, "--notes-of", phase, "--steps", str(steps), "--every", str(every)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [Note(**note) for note in json.loads(done.stdout.splitlines()[-1])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=EVERY, help="steps between two looks at the memory")
    parser.add_argument("--settled", type=int, default=SETTLED, help="steps that may fill caches")
    parser.add_argument("--phases", nargs="+", choices=sorted(PHASES), default=list(PHASES))
    parser.add_argument("--json", default="", help="write notes and growth to this file as well")
    parser.add_argument("--notes-of", choices=sorted(PHASES), default="", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.notes_of:
        print(json.dumps([asdict(note) for note in soak(args.notes_of, args.steps, args.every)]))
        return 0
    if args.steps < args.settled + 10 * args.every:
        parser.error("the steps after --settled must hold ten looks at the memory; raise --steps or lower --every")
    results, good = {}, True
    print(f"{args.steps} steps; MB after step {args.settled}, in the last fifth, and the largest")
    for phase in args.phases:
        notes = run_phase(phase, args.steps, args.every)
        found, missed = judge(phase, notes, args.settled)
        for kind, g in found.items():
            print(f"{phase:<8} {kind:<7} {g.early:8.1f} {g.late:8.1f} {g.largest:8.1f}   growth {g.share:+.2%}")
        print(f"{phase:<8} {'; '.join(missed) or 'ok'}", flush=True)
        good = good and not missed
        growths = {kind: asdict(g) for kind, g in found.items()}
        results[phase] = {"growth": growths, "missed": missed, "notes": [asdict(note) for note in notes]}
    if args.json:
        Path(args.json).write_text(json.dumps({"bar": BAR, "met": good, **results}, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
