"""Shared by all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

# Some tests compare bits with those of a process of their own, which must add in the same order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads of torch for one test; the others have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; tests that need it are skipped without it."""
    root = os.environ.get("RELATUM_DATA", "")
    if not root or not Path(root).is_dir():
        pytest.skip("RELATUM_DATA does not name a folder with the real data sets")
    return Path(root)
