"""Time and peak memory of all that happens before the first image is decoded, for lists of 20 k, 200 k and 2 M images.

The lists are generated: long-tailed over 10,000 classes, one `path label` line per image; the images do not exist.
Measured are the start of a training up to the samples of its first batch, an epoch's order by every sampler, `inspect`
without decoding, and resuming in the middle of an epoch (whose samples must be those of the uninterrupted epoch).

Each measurement has a process of its own, forked from one that has only imported the package, so that the peak of its
resident memory is its own. Memory "above" is what it adds to that; "total" adds what a new interpreter needs for the
imports. Seconds count from after the imports, which have a line of their own.

Growth is judged by CPU time, because waiting for a shared machine is not the program's growth; the limit in seconds by
wall time, because that is what a user waits. Numbers below the noise floor count as the floor.

Run: python benchmarks/scale.py [--json FILE]
Bars: with ten times the entries at most 12.5 times the time and the memory; the largest list within 20 s and 2 GB.
The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import scale_work
from scale_work import Work

SIZES = (20_000, 200_000, 2_000_000)
LIMIT_SECONDS, LIMIT_MB, TOLERANCE = 20.0, 2_000.0, 0.25
FLOOR_SECONDS, FLOOR_MB = 0.1, 16.0
FRESH = "import time, scale_work, scale; print(time.process_time(), time.perf_counter() - {began}, scale.peak_mb())"


@dataclass
class Line:
    """One measurement at one size; growth is against the next smaller size."""

    name: str
    entries: int
    cpu: float
    wall: float
    above: float
    total: float = 0.0
    time_growth: float | None = None
    memory_growth: float | None = None
    missed: list[str] = field(default_factory=list)


def peak_mb() -> float:
    """Largest resident memory of this process so far, in MB (10^6 bytes)."""
    # Not ru_maxrss: that of a new process may be the peak of the one that started it.
    words = Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()
    return int(words[0]) * 1.024 / 1000


def measure(name: str, work: Work, path: str, entries: int) -> Line:
    """Run `work` on the list in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scale_work"])
    _let_children_find(Path(__file__).parent)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, work, path))
    process.start()
    theirs.close()
    try:
        told = ours.recv()
    except EOFError:
        told = "it ended without an answer (killed for want of memory?)"
    process.join()
    if isinstance(told, str):
        raise RuntimeError(f"{name} at {entries} entries failed: {told}")
    return Line(name, entries, *told)


def _let_children_find(folder: Path) -> None:
    # The server looks for what it is to import before it is told of our sys.path.
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(folder) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *known])


def _child(answer: Connection, work: Work, path: str) -> None:
    try:
        before, cpu, wall = peak_mb(), time.process_time(), time.perf_counter()
        check = work(path)
        told = time.process_time() - cpu, time.perf_counter() - wall, peak_mb() - before
        if check is not None:
            check()
        answer.send(told)
    except BaseException:
        answer.send(traceback.format_exc())


def measure_all(works: Mapping[str, Work], sizes: Sequence[int], repeats: int, folder: Path) -> list[Line]:
    """Measure every work at every size; of the repeats, the shortest time and the largest memory."""
    imports = import_only()
    lines = [imports]
    for entries in sizes:
        scale_work.write_list(folder / f"{entries}.txt", entries)
    for name, work in works.items():
        for entries in sizes:
            tries = [measure(name, work, str(folder / f"{entries}.txt"), entries) for _ in range(repeats)]
            cpu, wall, above = min(t.cpu for t in tries), min(t.wall for t in tries), max(t.above for t in tries)
            lines.append(Line(name, entries, cpu, wall, above, imports.total + above))
    return lines


@cache
def import_only() -> Line:
    """What a new interpreter needs to import the package and nothing else."""
    code = FRESH.format(began=time.perf_counter())  # one clock for all processes
    told = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=True)
    cpu, wall, peak = map(float, told.stdout.split())
    return Line("imports only", 0, cpu, wall, 0.0, peak)


def judge(lines: Sequence[Line]) -> None:
    """Fill in growth and missed bars."""
    largest = max(line.entries for line in lines)
    for before, line in pairwise(lines):
        if before.name == line.name:
            _judge_growth(before, line)
        if line.entries == largest:
            if line.wall > LIMIT_SECONDS:
                line.missed.append(f"{line.wall:.1f} s, above {LIMIT_SECONDS:g} s")
            if line.total > LIMIT_MB:
                line.missed.append(f"{line.total:.0f} MB, above {LIMIT_MB:g} MB")


def _judge_growth(before: Line, line: Line) -> None:
    most = line.entries / before.entries * (1 + TOLERANCE)
    line.time_growth = max(line.cpu, FLOOR_SECONDS) / max(before.cpu, FLOOR_SECONDS)
    line.memory_growth = max(line.above, FLOOR_MB) / max(before.above, FLOOR_MB)
    for what, growth in (("time", line.time_growth), ("memory", line.memory_growth)):
        if growth > most:
            line.missed.append(f"{what} x {growth:.1f}, above {most:.3g}")


def show(lines: Sequence[Line]) -> None:
    print("                                        seconds        peak memory, MB     growth to the next size")
    print("measurement                  entries    CPU    wall     above    total     time   memory   bars")
    for line in lines:
        growth = [f"{g:.2f}" if g is not None else "" for g in (line.time_growth, line.memory_growth)]
        numbers = f"{line.cpu:7.2f} {line.wall:7.2f} {line.above:9.0f} {line.total:8.0f}"
        verdict = "; ".join(line.missed) or ("ok" if line.entries else "")
        print(f"{line.name:<27} {line.entries:9,} {numbers} {growth[0]:>8} {growth[1]:>8}   {verdict}".rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="entries of the lists, rising")
    parser.add_argument("--repeats", type=int, default=2, help="how often each measurement is made")
    parser.add_argument("--only", default="", help="measure only what has this word in its name")
    parser.add_argument("--json", default="", help="write the lines to this file as well")
    args = parser.parse_args(arguments)
    works = {name: work for name, work in scale_work.works().items() if args.only in name}
    with tempfile.TemporaryDirectory(prefix="relatum-scale-") as folder:
        lines = measure_all(works, sorted(args.sizes), args.repeats, Path(folder))
    judge(lines)
    show(lines)
    good = not any(line.missed for line in lines)
    print("all bars are met" if good else "a bar is missed")
    if args.json:
        bars = {"seconds": LIMIT_SECONDS, "mb": LIMIT_MB, "tolerance": TOLERANCE}
        content = {"bars": bars, "met": good, "lines": [asdict(line) for line in lines]}
        Path(args.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
