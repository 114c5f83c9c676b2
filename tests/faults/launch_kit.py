"""Start several real processes that train together, and wait for all of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS = 240  # far more than any launch needs: a hang fails the test instead of blocking it


class Ended(NamedTuple):
    """One process that has ended."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(
    command: Sequence[str], world: int, folder: Path, env: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Start `command` once for each rank, as Slurm's srun would: the variables are set, nobody watches over them."""
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **(env or {}),
    }
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def wait_for(running: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """Wait until all have ended; whoever is still alive after `SECONDS` is killed, and the test fails."""
    try:
        answers = [process.communicate(timeout=SECONDS) for process in running]
        return [Ended(process.returncode, *answer) for process, answer in zip(running, answers, strict=True)]
    finally:
        for process in running:
            process.kill()


def run_ranks(command: Sequence[str], world: int, folder: Path, env: Mapping[str, str] | None = None) -> list[Ended]:
    """Start `command` in `world` processes and wait for their end."""
    return wait_for(start_ranks(command, world, folder, env))


def torchrun(arguments: Sequence[str], folder: Path, world: int = 2, env: Mapping[str, str] | None = None) -> Ended:
    """Run `relatum ARGUMENTS` under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--master-port", str(free_port()), "-m", "relatum", *arguments]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=SECONDS)
    return Ended(done.returncode, done.stdout, done.stderr)
