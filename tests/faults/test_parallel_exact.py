"""In float64 two processes with half the batch each end where one process with all of it ends, to 1e-10."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from launch_kit import run_ranks
from parallel_training import CASES, train

TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("float64")
    program = Path(__file__).with_name("parallel_training.py")
    ended = run_ranks([sys.executable, str(program), str(folder)], 2, folder)
    assert [e.code for e in ended] == [0, 0], ended
    return folder


def difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def alone(case: str) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(case)


# These compare the samples of a batch with each other, and each process has only its own.
APART = ("BatchFormer, apart", "lade")


@pytest.mark.parametrize("case", [case for case in CASES if case not in APART])
def test_two_processes_train_what_one_trains(folder, case):
    together = torch.load(folder / f"{case}-2.pt", weights_only=True)
    assert difference(together, alone(case)) <= TOLERANCE


@pytest.mark.parametrize("case", APART)
def test_what_compares_samples_within_a_process_is_another_training(folder, case):
    together = torch.load(folder / f"{case}-2.pt", weights_only=True)
    assert difference(together, alone(case)) > 1e-6
