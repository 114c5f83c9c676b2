"""What one process measures, all of them use."""

import sys
from pathlib import Path

from launch_kit import run_ranks


def test_processes_that_measure_different_things_train_in_what_the_first_found(tmp_path):
    program = Path(__file__).with_name("parallel_choice.py")
    ended = run_ranks([sys.executable, str(program)], 2, tmp_path)
    assert [e.code for e in ended] == [0, 0], ended
    assert sorted(e.out.strip() for e in ended) == ["0 bfloat16", "1 bfloat16"]
