"""Freed memory stays with the process: counted in pages that the system had to give, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relatum.train.allocator import keep_freed_memory

CHILD = """
import resource, sys
import torch
from relatum.train.allocator import keep_freed_memory
done = keep_freed_memory() if sys.argv[1] == "keep" else True
def work():
    blocks = [torch.ones(12_000_000) for _ in range(2)]  # glibc by itself keeps blocks of up to 32 MB
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(int(done), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(way: str) -> int:
    """Pages given to a process that asks for 96 MB and frees them, ten times."""
    answer = subprocess.run([sys.executable, "-c", CHILD, way], capture_output=True, text=True, check=True)
    done, count = answer.stdout.split()
    if done == "0":
        pytest.skip("no glibc here, or malloc is tuned by the environment")
    return int(count)


def test_a_process_that_keeps_its_memory_asks_once():
    assert pages("keep") < 0.1 * pages("as it is")


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_who_tunes_malloc_is_left_alone(name):
    assert keep_freed_memory({name: "1"}) is False
