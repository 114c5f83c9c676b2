"""The names people import, and what importing them costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

import relatum


@pytest.mark.parametrize("name", relatum.__all__)
def test_every_public_name_resolves(name):
    assert getattr(relatum, name) is not None


def test_the_names_that_stay_are_there():
    promised = {"BatchAttention", "BatchFormer", "attach", "ClassPrior", "objectives", "create_model", "load"}
    assert promised | {"fit", "evaluate", "report", "Relation", "Batch", "Scores"} <= set(relatum.__all__)
    assert set(dir(relatum)) >= set(relatum.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = relatum.atach
    assert not hasattr(relatum, "nothing")


def test_the_rooms_can_be_reached_by_name():
    for room in ("data", "evaluate", "models", "objectives", "recipes", "relation", "report", "train"):
        assert isinstance(getattr(relatum, room), ModuleType)


def test_evaluate_and_report_are_doors_and_rooms():
    from relatum.evaluate import evaluate as evaluate_function
    from relatum.evaluate import score
    from relatum.report import load_records

    for room in (relatum.evaluate, relatum.report):
        assert callable(room)
        assert isinstance(room, ModuleType)
    assert relatum.evaluate.score is score
    assert relatum.report.load_records is load_records
    with pytest.raises(TypeError):
        relatum.evaluate()  # goes through the door, which wants a model and a loader
    assert relatum.evaluate.evaluate is evaluate_function
    assert not callable(relatum.data)


def test_calling_a_room_calls_its_door():
    import torch

    pairs = [(torch.eye(3), torch.arange(3))]
    scores = relatum.evaluate(torch.nn.Identity(), pairs)
    assert scores.top1 == 1.0


_LOOK = """
import json, os, sys
import relatum
import relatum.config, relatum.config_files, relatum.errors
heavy = [name for name in ("torch", "torchvision", "timm", "numpy", "matplotlib", "rich") if name in sys.modules]
print(json.dumps([heavy, os.environ["OMP_WAIT_POLICY"], relatum.__version__]))
"""


def _fresh(environment):
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def test_importing_the_package_imports_nothing_heavy_and_stops_threads_from_spinning():
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    assert _fresh(environment) == [[], "PASSIVE", relatum.__version__]


def test_a_wait_policy_of_the_user_stays():
    assert _fresh({**os.environ, "OMP_WAIT_POLICY": "ACTIVE"})[1] == "ACTIVE"


def test_the_version_is_that_of_the_package():
    from importlib import metadata

    assert metadata.version("relatum") == relatum.__version__
