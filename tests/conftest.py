"""Shared by all tests."""

import os
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


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; tests that need it are skipped without it."""
    root = os.environ.get("RELATUM_DATA", "")
    if not root or not Path(root).is_dir():
        pytest.skip("RELATUM_DATA does not name a folder with the real data sets")
    return Path(root)
