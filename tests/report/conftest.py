"""Fixtures of the report tests: fabricated run directories."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _load():
    spec = importlib.util.spec_from_file_location("report_fabricate", Path(__file__).with_name("fabricate.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fabricate():
    return _load()


@pytest.fixture(scope="session")
def three_runs(fabricate, tmp_path_factory):
    """A folder with a cross-entropy, a Balanced Softmax and a BatchFormer run; read only."""
    return fabricate.three_runs(tmp_path_factory.mktemp("runs"))
