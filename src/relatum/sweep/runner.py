"""Run jobs as child processes, one after another or several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from relatum import stopping
from relatum.sweep.plan import Job
from relatum.sweep.state import is_finished

PAUSE = 0.1
TAIL = 8


@dataclass
class Outcome:
    """What came of the jobs.

    Args:
        finished: names of the jobs that ended well.
        failed: last lines of those that did not, by name.
        interrupted: whether Ctrl-C or SIGTERM ended the sweep early.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    interrupted: bool = False


@dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    begun: float
    offset: int


class Runner:
    """Run jobs; one that fails does not stop the others, only those that need it.

    Args:
        folder: the sweep directory; what children print goes to `logs` in it.
        jobs: what to run, in this order; a job comes after the one it needs.
        at_once: how many children run at a time.
        say: where a line about progress goes.
        command: the program before a job's words.
        keep_open: file descriptors that children inherit.
    """

    def __init__(
        self,
        folder: Path,
        jobs: Sequence[Job],
        at_once: int,
        say: Callable[[str], None],
        command: Sequence[str] = (sys.executable, "-m", "relatum"),
        keep_open: Sequence[int] = (),
    ) -> None:
        self.folder, self.at_once, self.say = folder, at_once, say
        self.command, self.keep_open = list(command), tuple(keep_open)
        self.waiting, self.total = list(jobs), len(jobs)
        self.running: list[_Child] = []
        self.outcome = Outcome()
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def run(self) -> Outcome:
        """Run everything and return what came of it; after Ctrl-C or SIGTERM, as soon as the children have saved."""
        with Stop() as stop:
            try:
                while self.running or (self.waiting and not stop.requests):
                    self._start(stop)
                    time.sleep(PAUSE)
                    for _ in range(stop.news()):
                        self._forward()
                    self._collect(stop)
            finally:
                self._abandon()
            self.outcome.interrupted = bool(stop.requests)
        return self.outcome

    def _start(self, stop: Stop) -> None:
        needed = {job.name for job in self.waiting} | {child.job.name for child in self.running}
        for job in [job for job in self.waiting if job.needs not in needed]:
            if stop.requests or len(self.running) >= self.at_once:
                return
            self.waiting.remove(job)
            self.running.append(self._child(job))

    def _child(self, job: Job) -> _Child:
        path = self.folder / "logs" / f"{job.name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.open("ab")
        # A group of its own: Ctrl-C on the terminal reaches the sweep alone, which passes it on once.
        process = subprocess.Popen(
            [*self.command, *job.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment(self.at_once, os.environ), stopping.PARENT: str(os.getpid())},
            process_group=0,
            pass_fds=self.keep_open,
        )
        return _Child(job, process, log, time.monotonic(), path.stat().st_size)

    def _forward(self) -> None:
        """Pass a wish to stop on: SIGTERM, which ends a child that cannot save yet and lets all others save."""
        for child in self.running:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)

    def _collect(self, stop: Stop) -> None:
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            child.log.close()
            elapsed = time.monotonic() - child.begun
            if child.process.returncode == 0 and is_finished(child.job):
                self.outcome.finished.append(child.job.name)
                self.seconds[child.job.point is None].append(elapsed)
                self._tell(child.job, f"finished in {duration(elapsed)}")
            elif not stop.requests:
                self._fail(child, elapsed)

    def _fail(self, child: _Child, elapsed: float) -> None:
        job = child.job
        self.outcome.failed[job.name] = _last_lines(self.folder / "logs" / f"{job.name}.txt", child)
        for other in [other for other in self.waiting if other.needs == job.name]:
            self.waiting.remove(other)
            self.outcome.failed[other.name] = [f"not started: it needs {job.name}, which failed."]
        self._tell(job, f"failed after {duration(elapsed)}")

    def _tell(self, job: Job, what: str) -> None:
        done = len(self.outcome.finished) + len(self.outcome.failed)
        left = self._seconds_left()
        eta = f"; about {duration(left)} to go" if left and left >= 1 else ""
        self.say(f"[{done}/{self.total}] {job.name}: {what}{eta}")

    def _seconds_left(self) -> float | None:
        """Seconds until the end by what runs of the same kind took; None while one kind is not known, or at the end."""
        left = [*((child.job, time.monotonic() - child.begun) for child in self.running)]
        left += [(job, 0.0) for job in self.waiting]
        total = 0.0
        for job, spent in left:
            known = self.seconds[job.point is None]
            if not known:
                return None
            total += max(sum(known) / len(known) - spent, 0.0)
        return total / min(self.at_once, len(left)) if left else None

    def _abandon(self) -> None:
        """Leave no child behind when something unforeseen ends the sweep."""
        self._forward()
        for child in self.running:
            child.process.wait()
            child.log.close()


class Stop:
    """Count Ctrl-C, SIGTERM and the closing of the terminal instead of dying of them."""

    def __init__(self) -> None:
        self.requests = 0
        self._told = 0
        self._before: dict[int, Any] = {}

    def news(self) -> int:
        """Return how many requests have come since the last call."""
        new, self._told = self.requests - self._told, self.requests
        return new

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in stopping.stop_signals():
                self._before[number] = signal.signal(number, self._count)
        return self

    def _count(self, number: int, frame: FrameType | None) -> None:
        stopping.note(number)
        self.requests += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def environment(at_once: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: several at a time share the cores, unless the user has said otherwise."""
    own = dict(given)
    if at_once > 1 and "OMP_NUM_THREADS" not in own:
        own["OMP_NUM_THREADS"] = str(max(1, cores() // at_once))
    return own


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def duration(seconds: float) -> str:
    """Write a time as people do.

    >>> duration(125), duration(3 * 3600 + 60)
    ('2 min 05 s', '3 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _last_lines(path: Path, child: _Child) -> list[str]:
    with path.open("rb") as file:
        file.seek(child.offset)
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    code = child.process.returncode
    ending = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return lines[-TAIL:] or [f"{ending}, without a word."]
