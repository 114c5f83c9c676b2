"""Shared by the tests of the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import fit_everything


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with everything on that was never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert fit_everything(out).status == "finished"
    return out
