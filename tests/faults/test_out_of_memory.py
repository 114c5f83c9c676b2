"""Memory runs out for real: one message with the numbers that decide it, and nothing is split."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from broken_steps import CONFIG, FusedNet
from tiny import TRAIN, loaders, newest, quiet, task

from relatum.errors import TrainingError
from relatum.out_of_memory import is_out_of_memory
from relatum.train import fit


class _Hungry(FusedNet):
    """Asks for a petabyte in pass `at` of training or evaluation."""

    def __init__(self, at: int, training: bool) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.at, self.when, self.sizes = at, training, []

    def forward(self, x):
        if self.training == self.when:
            self.sizes.append(len(x))
            if len(self.sizes) == self.at:
                torch.empty(2**50, dtype=torch.uint8)
        return super().forward(x)


@pytest.mark.parametrize("relation", [False, True], ids=["plain", "relation"])
def test_a_training_step_without_memory_says_what_to_lower_and_never_splits(tmp_path, relation):
    model = _Hungry(8, training=True)
    built = task(model=model, relation=relation)
    with pytest.raises(TrainingError) as caught:
        fit(built, loaders(), TRAIN, out=tmp_path, display=quiet())
    message = str(caught.value)
    assert "out of memory in training step 7, with 8 images at once" in message
    cures = ["--data.batch-size", "--data.image-size", "--train.precision bfloat16"]
    assert [message.index(cure) for cure in cures] == sorted(message.index(cure) for cure in cures)
    assert ("The relation batch is 8" in message) == relation
    assert ("so that is never done for you" in message) == relation
    assert model.sizes == [8] * 8  # no smaller batch was tried
    assert is_out_of_memory(caught.value.__cause__)


def test_the_same_command_goes_on_where_there_is_memory(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(task(model=_Hungry(0, training=True)), loaders(), CONFIG, out=whole, display=quiet())
    with pytest.raises(TrainingError, match="out of memory"):
        fit(task(model=_Hungry(8, training=True)), loaders(), CONFIG, out=cut, display=quiet())
    assert [path.name for path in (cut / "checkpoints").glob("*.safetensors")] == ["step-000000005.safetensors"]
    fit(task(model=_Hungry(0, training=True)), loaders(), CONFIG, out=cut, display=quiet())
    assert torch.equal(newest(cut)["model.fc.weight"], newest(whole)["model.fc.weight"])


def test_an_evaluation_without_memory_names_its_own_batch_size(tmp_path):
    with pytest.raises(TrainingError) as caught:
        fit(task(model=_Hungry(1, training=False), relation=True), loaders(), TRAIN, out=tmp_path, display=quiet())
    assert "out of memory in the evaluation of val, with 16 images at once" in str(caught.value)
    assert "Lower --data.eval-batch-size" in str(caught.value)
    assert "relation batch" not in str(caught.value)


def test_what_is_in_use_is_not_advised():
    built = task(model=_Hungry(1, training=True))
    with pytest.raises(TrainingError) as caught:
        fit(built, loaders(), replace(TRAIN, precision="bfloat16"), display=quiet())
    assert "bfloat16" not in str(caught.value)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_batch_that_does_not_fit_is_not_left_out(tmp_path, policy):
    """Leaving out is for numbers that are not finite; another batch would need as much memory."""
    with pytest.raises(TrainingError, match="out of memory"):
        fit(
            task(model=_Hungry(3, training=True)),
            loaders(),
            replace(TRAIN, on_nonfinite=policy),
            out=tmp_path,
            display=quiet(),
        )
    assert json.loads((tmp_path / "manifest.json").read_text())["nonfinite_skipped"] == 0


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_other_errors_are_not_taken_for_it(error, answer):
    assert is_out_of_memory(error) == answer


def test_another_error_in_a_step_stays_what_it_is():
    built = task()
    built.forward = lambda batch: torch.zeros(2, 3) @ torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        fit(built, loaders(), TRAIN, display=quiet())


_LIMITED = """
import resource, sys
from pathlib import Path
import relatum.verbs, relatum.recipes.classification, torch
from relatum.cli import main
torch.zeros(64, 64) @ torch.zeros(64, 64)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
def test_the_command_under_a_real_limit(tmp_path):
    words = "train shapes-lt --data.batch-size 1200 --data.image-size 64 --data.workers 0 --train.epochs 1"
    words += " --train.warmup-epochs 0 --train.device cpu --train.precision float32 --train.threads 1"
    command = [sys.executable, "-c", _LIMITED, *words.split(), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "out of memory in training step 0" in done.stderr
    assert "The relation batch is 1200" in done.stderr
