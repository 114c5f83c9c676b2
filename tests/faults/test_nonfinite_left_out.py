"""Batches whose numbers are not finite, left out or gone back before: exact, bounded, also over a crash."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from broken_steps import (
    CONFIG,
    ROLLBACK,
    SHORT,
    SKIP,
    Harmful,
    failure_of,
    harmful_fit,
    manifest,
)
from tiny import Talk, assert_as_if_nothing_happened, assert_same_bits, loaders, newest, rows

from relatum.errors import CheckpointError, ConfigError, TrainingError
from relatum.train.average import moving_average
from relatum.train.checkpoint import load_checkpoint
from relatum.train.optim import build_optimizer, learning_rate, set_learning_rate

# -- leaving out is exact ----------------------------------------------------------------------------------------------


def _by_hand(left_out):
    """The run of `harmful_fit` without the batches of `left_out`, written out."""
    data = loaders(augment="weak", mixup=0.4, seed=3)
    built = Harmful(data, [], "", relation=True)
    optimizer, average = build_optimizer(built.param_groups(CONFIG), CONFIG), moving_average(built.model, CONFIG.ema)
    taken = 0
    for epoch in range(CONFIG.epochs):
        torch.manual_seed(CONFIG.seed * 1_000_003 + epoch)
        built.train()
        built.set_epoch(epoch, CONFIG.epochs)
        for number, batch in enumerate(data.train.epoch(epoch)):
            if (epoch, number) in left_out:
                continue
            optimizer.zero_grad()
            built(batch)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(built.model.parameters(), CONFIG.clip)
            set_learning_rate(optimizer, learning_rate(CONFIG, epoch + number / 5))
            optimizer.step()
            taken += 1
            average.update(built.model, step=taken)
    return built.model.state_dict(), average.module.state_dict()


@pytest.mark.parametrize("policy", ["skip", "rollback"])
@pytest.mark.parametrize("harm", ["nan", "slope"])
def test_a_run_that_leaves_batches_out_is_the_run_without_them(tmp_path, policy, harm):
    places = [(0, 0), (1, 2), (1, 4)]  # the very first, within an epoch, the last of an epoch
    config = replace(CONFIG, on_nonfinite=policy)
    done, built = harmful_fit(tmp_path, places, harm, config)
    assert (done.status, done.steps) == ("finished", 15)
    assert built.met == 6
    weights, average = _by_hand(places)
    saved = newest(tmp_path)
    assert not torch.equal(weights["fc.weight"], _by_hand([])[0]["fc.weight"])
    assert_same_bits(weights, {name: saved[f"model.{name}"] for name in weights})
    assert_same_bits(average, {name: saved[f"ema.{name}"] for name in average})
    assert manifest(tmp_path)["nonfinite_skipped"] == 3
    assert manifest(tmp_path)["nonfinite_places"] == [list(place) for place in places]
    found = rows(tmp_path, kind="train")
    assert [(row["step"], row["epoch"]) for row in found] == [(5, 1.0), (10, 2.0), (15, 3.0)]
    assert all(math.isfinite(value) for row in found for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize("every", [1, 2], ids=["back within the epoch", "back over an epoch"])
@pytest.mark.parametrize("places", [[(1, 2)], [(1, 1), (1, 3), (2, 0)]], ids=["one", "three"])
def test_rollback_ends_as_skip_does_in_bits_rows_and_scores(tmp_path, places, every):
    harmful_fit(tmp_path / "skip", places, "forward", replace(SKIP, save_every=every))
    shown = Talk()
    harmful_fit(tmp_path / "back", places, "forward", replace(ROLLBACK, save_every=every), shown)
    assert_as_if_nothing_happened(tmp_path / "back", tmp_path / "skip")
    back = [text for text in shown.said if text.startswith("Continuing")]
    expected = {1: [5, 5, 10], 2: [0, 0, 10]}[every][: len(places)] if len(places) > 1 else [{1: 5, 2: 0}[every]]
    assert [int(text.rsplit(" ", 1)[1].rstrip(".")) for text in back] == expected
    assert any("going back to the last checkpoint and leaving its batch out (1 of at most 4)" in t for t in shown.said)
    assert f"{len(places)} batch" in shown.said[-1]
    assert manifest(tmp_path / "back")["nonfinite_places"] == manifest(tmp_path / "skip")["nonfinite_places"]


def test_an_epoch_of_which_nothing_is_left_writes_no_row(tmp_path):
    places = [(1, number) for number in range(5)]
    done, _ = harmful_fit(tmp_path, places, "nan", replace(SKIP, nonfinite_limit=5))
    assert done.status == "finished"
    assert [row["step"] for row in rows(tmp_path, kind="train")] == [5, 15]


def test_with_accumulation_the_whole_group_is_left_out(tmp_path):
    config = replace(SHORT, accumulate=2, on_nonfinite="skip")
    harmful_fit(tmp_path, [(0, 3)], "nan", config, relation=False)
    assert manifest(tmp_path)["nonfinite_places"] == [[0, 2]]
    (row,) = rows(tmp_path, kind="train")
    assert row["step"] == 3


# -- stopped and run again ---------------------------------------------------------------------------------------------


class _SignalAfter(Talk):
    """Sends a signal when step `step` is done after a batch has been left out, or before if `early`."""

    def __init__(self, step, number=signal.SIGINT, *, early=False):
        super().__init__()
        self.at, self.number, self.early = step, number, early

    def step(self, done, info, eta_seconds):
        happened = any("its batch out" in text for text in self.said)
        if done == self.at and (happened or self.early):
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("config", [SKIP, ROLLBACK], ids=["skip", "rollback"])
@pytest.mark.parametrize("step", [8, 9], ids=["at the batch", "after it"])
def test_a_resumed_run_leaves_out_the_same_and_goes_on_counting(tmp_path, config, step):
    places = [(1, 2), (2, 1)]  # steps 7 and 11
    harmful_fit(tmp_path / "whole", places, "nan", config)
    stopped, _ = harmful_fit(tmp_path / "cut", places, "nan", config, _SignalAfter(step))
    assert (stopped.status, stopped.steps) == ("interrupted", step)
    assert manifest(tmp_path / "cut")["nonfinite_skipped"] == 1
    _, built = harmful_fit(tmp_path / "cut", places, "nan", config)
    assert built.met == 2  # the first of the two is behind it
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")
    assert manifest(tmp_path / "cut")["nonfinite_places"] == [[1, 2], [2, 1]]


def test_what_is_to_be_left_out_later_is_in_the_checkpoint(tmp_path):
    """Stopped on the way from the checkpoint back to the bad batch: it is not tried again."""
    harmful_fit(tmp_path / "whole", [(1, 2)], "nan", ROLLBACK)
    stopped, _ = harmful_fit(tmp_path / "cut", [(1, 2)], "nan", ROLLBACK, _SignalAfter(6))
    assert stopped.steps == 6
    values = load_checkpoint(tmp_path / "cut" / "checkpoints" / "step-000000006.safetensors").values
    assert values["nonfinite"] == [[1, 2]]
    _, built = harmful_fit(tmp_path / "cut", [(1, 2)], "nan", ROLLBACK)
    assert built.met == 0
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")


_KILLED = """
import signal, sys
sys.path.insert(0, {folder!r})
import torch
torch.set_num_threads({threads})
from broken_steps import harmful_fit
from test_nonfinite_left_out import ROLLBACK, _SignalAfter
harmful_fit({out!r}, [(1, 2)], "nan", ROLLBACK, _SignalAfter(6, signal.SIGKILL))
"""


def test_kill_9_after_going_back_changes_nothing(tmp_path):
    harmful_fit(tmp_path / "whole", [(1, 2)], "nan", ROLLBACK)
    out = tmp_path / "cut"
    words = {"folder": str(Path(__file__).parent), "out": str(out), "threads": torch.get_num_threads()}
    done = subprocess.run([sys.executable, "-c", _KILLED.format(**words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (manifest(out)["status"], failure_of(out)["action"]) == ("running", "rollback")
    harmful_fit(out, [(1, 2)], "nan", ROLLBACK)
    assert_as_if_nothing_happened(out, tmp_path / "whole")


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_the_limit_ends_the_run(tmp_path, policy):
    config = replace(CONFIG, on_nonfinite=policy, nonfinite_limit=2)
    with pytest.raises(TrainingError) as caught:
        harmful_fit(tmp_path, [(0, 1), (1, 0), (1, 3), (2, 0)], "nan", config)
    assert "not finite at step 8" in str(caught.value)
    assert "2 batches were left out, because loss or gradient was not finite (at most 2)." in str(caught.value)
    assert manifest(tmp_path)["nonfinite_skipped"] == 2
    assert (failure_of(tmp_path)["step"], failure_of(tmp_path)["action"]) == (8, "stop")
    assert all(tensor.double().isfinite().all() for tensor in newest(tmp_path).values())


def test_the_limit_counts_over_all_starts_of_a_run(tmp_path):
    config = replace(SKIP, nonfinite_limit=2)
    places = [(0, 1), (1, 0), (2, 0)]
    harmful_fit(tmp_path, places, "nan", config, _SignalAfter(8))
    with pytest.raises(TrainingError, match="2 batches were left out"):
        harmful_fit(tmp_path, places, "nan", config)


def test_exactly_the_limit_is_allowed(tmp_path):
    done, _ = harmful_fit(tmp_path, [(0, 1), (1, 0)], "nan", replace(SKIP, nonfinite_limit=2))
    assert done.status == "finished"


# -- rollback needs something to go back to ----------------------------------------------------------------------------


def test_rollback_without_a_directory_is_refused_before_training():
    with pytest.raises(ConfigError, match="rollback needs a run directory"):
        harmful_fit(None, [(0, 0)], "nan", ROLLBACK)


def test_rollback_with_every_checkpoint_damaged_is_one_clear_error(tmp_path):
    class Damage(Talk):
        def step(self, done, info, eta_seconds):
            if done == 7:
                for path in (tmp_path / "checkpoints").glob("*.safetensors"):
                    path.write_bytes(b"")

    with pytest.raises(CheckpointError, match="No checkpoint is left to continue from"):
        harmful_fit(tmp_path, [(1, 2)], "nan", ROLLBACK, Damage())


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_leaves_out_up_to_its_limit_and_then_says_why_it_stops(tmp_path):
    """A learning rate at which everything overflows after one step: no batch is finite from then on."""
    words = (
        "train shapes-lt --data.image-size 16 --data.batch-size 32 --data.largest 40 --train.epochs 2 --train.lr 1e30"
    )
    words += " --train.warmup-epochs 0 --train.device cpu --train.precision float32 --train.on-nonfinite skip"
    command = [sys.executable, "-m", "relatum", *words.split(), "--train.nonfinite-limit", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "relatum: error: the loss is not finite at step 3" in done.stderr
    assert "first in the output of 'model." in done.stderr
    assert "2 batches were left out" in done.stderr
    assert failure_of(tmp_path)["first"]["kind"] == "forward"
