"""Train what has no row yet, as child processes, and append a row for each run as soon as it is finished."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from claims_tools.claim import Claim
from claims_tools.grids import Arm
from claims_tools.left import left_in_words
from claims_tools.rows import Row, append_row, checked_rows, finished_keys, run_row
from claims_tools.settings import arm_config, data_settings
from relatum import stopping
from relatum.recipes.catalog import find_recipe
from relatum.sweep.grid import Point, with_settings
from relatum.sweep.plan import Base, Job, plan_jobs
from relatum.sweep.record import locked
from relatum.sweep.runner import Outcome, Runner, cores
from relatum.sweep.state import is_finished
from relatum.sweep.verb import pending

EXIT_FAILED = 1


@dataclass(frozen=True)
class Options:
    """How to run a claim.

    Args:
        work: directory for the runs; interrupted ones go on there.
        data: folder of all data sets; empty if the claim's data is generated.
        jobs: runs at a time.
        only: names or wildcards of arms; empty for all.
        seeds: of these seeds only; None for all.
        minutes: stop after so many, and let the runs save; 0 for no limit.
    """

    work: Path
    data: str = ""
    jobs: int = 1
    only: Sequence[str] = ()
    seeds: Collection[int] | None = None
    minutes: float = 0.0


@dataclass(frozen=True)
class ArmPoint(Point):
    """A point of a sweep that is called as its arm, so that directories and rows have one name."""

    arm: str = ""

    @property
    def name(self) -> str:
        """Name of the arm."""
        return self.arm


def run_claim(claim: Claim, options: Options) -> int:
    """Train every arm and seed of the claim that has no row, and return an exit code."""
    rows = checked_rows(claim)
    todo = missing(claim, rows, options)
    print(left_in_words(claim, rows, todo, options.jobs), flush=True)
    if not todo:
        return 0
    jobs = plan(claim, todo, options)
    with locked(options.work):
        collector = Collector(claim, jobs)
        collector.collect()  # what ended just before an earlier command was killed
        runner = Runner(options.work, pending(jobs), options.jobs, collector.say)
        with _time_limit(options.minutes) as over:
            outcome = runner.run()
        collector.collect()
    return _ending(claim, outcome, bool(over), len(todo) - collector.collected)


def missing(claim: Claim, rows: Sequence[Row], options: Options) -> list[tuple[Arm, int]]:
    """Return arm and seed of every run that has no row, all arms of a seed before the next seed."""
    done = finished_keys(rows)
    arms = claim.select(options.only)
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    chosen = seeds if options.seeds is None else [seed for seed in seeds if seed in options.seeds]
    return [(arm, seed) for seed in chosen for arm in arms if seed in arm.seeds and (arm.name, seed) not in done]


def plan(claim: Claim, todo: Sequence[tuple[Arm, int]], options: Options) -> list[Job]:
    """Return the child processes that train `todo`, with first stages that runs of a seed share."""
    jobs: dict[str, Job] = {}
    for seed in dict.fromkeys(seed for _, seed in todo):
        for recipe, root in dict.fromkeys((arm.recipe, arm.root) for arm, at in todo if at == seed):
            arms = [arm for arm, at in todo if at == seed and (arm.recipe, arm.root) == (recipe, root)]
            for arm in arms:
                arm_config(claim, arm)  # an error in a setting names the arm
            points = [ArmPoint(dict(arm.settings), arm.name) for arm in arms]
            jobs |= {job.name: job for job in plan_jobs(_base(claim, recipe, root, options), points, [seed])}
    return list(jobs.values())


def _base(claim: Claim, recipe: str, root: str, options: Options) -> Base:
    common = {**claim.settings, **data_settings(claim, options.data, root)}
    if options.jobs > 1:
        common["train.threads"] = max(1, cores() // options.jobs)
    config = with_settings(find_recipe(recipe).config(), common)
    return Base(recipe, config, tuple(Point(common).words()), options.work)


class Collector:
    """Appends the rows of runs that have ended, each once.

    Args:
        claim: whose results file gets the rows.
        jobs: what was planned.
    """

    def __init__(self, claim: Claim, jobs: Sequence[Job]) -> None:
        self.claim, self.open = claim, [job for job in jobs if isinstance(job.point, ArmPoint)]
        self.folders = {job.name: job.path for job in jobs}
        self.collected = 0

    def say(self, text: str) -> None:
        """Print a line about progress. Where something has ended there is a row to append."""
        print(text, flush=True)
        self.collect()

    def collect(self) -> None:
        """Append the row of every run that has ended."""
        for job in [job for job in self.open if is_finished(job)]:
            assert isinstance(job.point, ArmPoint)
            arm = self.claim.arm(job.point.arm)
            stage = self.folders[job.needs] if job.needs is not None else None
            append_row(self.claim.results, run_row(self.claim, arm, job.seed, job.path, stage))
            self.open.remove(job)
            self.collected += 1


@contextmanager
def _time_limit(minutes: float) -> Iterator[list[bool]]:
    """Ask this process to stop after some minutes, as Ctrl-C does; the list is not empty once that has happened."""
    over: list[bool] = []

    def stop() -> None:
        over.append(True)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(60 * minutes, stop) if minutes else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield over
    finally:
        if timer is not None:
            timer.cancel()


def _ending(claim: Claim, outcome: Outcome, over: bool, left: int) -> int:
    for name, lines in outcome.failed.items():
        print(f"\n{name} failed:", *(f"  {line}" for line in lines), sep="\n")
    if left:
        why = "the time is over" if over else "stopped" if outcome.interrupted else "not all runs ended well"
        print(f"{claim.name}: {why}; {left} runs are left, and the same command goes on with them.")
    else:
        print(f"{claim.name}: every run has its row in {claim.results}")
    if outcome.interrupted and not over:
        return stopping.exit_code()
    return EXIT_FAILED if outcome.failed else 0
