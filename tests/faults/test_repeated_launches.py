"""Two processes train, part, and exit with 0: again and again, since a crash at the end comes only now and then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch_kit import SECONDS, run_ranks

FORKED, STARTED = 40, 3
PROGRAM = Path(__file__).with_name("launch_again.py")
PLACE = {"PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), os.environ.get("PYTHONPATH", "")])}
ALONE = "import launch_again; launch_again.train_and_part()"


def test_forked_pairs_exit_cleanly(tmp_path):
    command = [sys.executable, str(PROGRAM), str(FORKED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0|0|the last word of 0|the last word of 1"] * FORKED, done.stderr


@pytest.mark.parametrize("launch", range(STARTED))
def test_started_pairs_exit_cleanly(tmp_path, launch):
    ended = run_ranks([sys.executable, "-c", ALONE], 2, tmp_path, PLACE)
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]
    assert [e.out for e in ended] == [f"the last word of {rank}\n" for rank in range(2)]


def test_a_process_that_does_not_end_well_is_seen(tmp_path):
    """The counterpart: what these tests look at does change when a process dies at its end."""
    words = "import os, launch_again; launch_again.processes.leave = lambda code: os.abort(); "
    ended = run_ranks(
        [sys.executable, "-c", f"{words}launch_again.train_and_part()"],
        2,
        tmp_path,
        PLACE,
    )
    assert [e.code for e in ended] == [-6, -6]
