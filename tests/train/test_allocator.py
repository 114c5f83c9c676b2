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
    size, count = (12_000_000, 2) if sys.argv[2] == "first" else (1_000_000, 24)
    blocks = [torch.ones(size) for _ in range(count)]  # glibc by itself keeps blocks of up to 32 MB
run = work
if sys.argv[2] == "other":
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(1)
    run = lambda: pool.submit(work).result()
for _ in range(3):
    run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    run()
print(int(done), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(way: str, thread: str) -> int:
    """Pages given to a process that asks for 96 MB and frees them, ten times, in its first thread or another."""
    answer = subprocess.run([sys.executable, "-c", CHILD, way, thread], capture_output=True, text=True, check=True)
    done, count = answer.stdout.split()
    if done == "0":
        pytest.skip("no glibc here, or malloc is tuned by the environment")
    return int(count)


@pytest.mark.parametrize("thread", ["first", "other"])
def test_a_process_that_keeps_its_memory_asks_once(thread):
    assert pages("keep", thread) < 0.1 * pages("as it is", thread)


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"])
def test_who_tunes_malloc_is_left_alone(name):
    assert keep_freed_memory({name: "1"}) is False
