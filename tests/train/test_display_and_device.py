"""What a person sees while training, and where it is computed."""

from __future__ import annotations

import io
import itertools
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tiny import TRAIN, Talk, loaders, quiet, task

from relatum.errors import ConfigError
from relatum.train import Display, fit
from relatum.train.device import autocast, pick_device, pick_precision


def test_off_a_terminal_there_is_a_row_for_every_epoch():
    class Rows(Talk):
        def __init__(self):
            super().__init__()
            self.quiet = False

    shown = Rows()
    fit(task(), loaders(), replace(TRAIN, epochs=2), display=shown)
    assert [text.split("  ")[1] for text in shown.said] == ["epoch 1/2", "epoch 2/2"]
    assert "All" in shown.said[0]
    assert "Many n/a" in shown.said[0]  # 13 images a class: every class is few
    assert re.search(r"All \d+\.\d %", shown.said[0])
    assert "ETA" in shown.said[0]


def test_on_a_terminal_there_is_a_bar_with_an_eta():
    stream = io.StringIO()
    fit(task(), loaders(), TRAIN, display=Display("mine", console=Console(file=stream, force_terminal=True, width=120)))
    text = stream.getvalue()
    assert "mine" in text
    assert "15/15" in text
    assert "ETA" in text
    assert "img/s" in text


class Etas(Display):
    """A display that remembers when it was told that the run will end."""

    def __init__(self):
        super().__init__(quiet=True)
        self.steps, self.epochs = [], []

    def step(self, done, info, eta_seconds):
        self.steps.append(eta_seconds)

    def epoch(self, number, epochs, values, eta_seconds):
        self.epochs.append(eta_seconds)


@pytest.mark.parametrize(
    ("sizes", "max_steps", "wanted"),
    [((), 0, [9, 8, 7, 6, 5, 4, 3, 2, 1]), ((), 6, [5, 4, 3, 2, 1, 0]), ((8, 16), 0, [24, 23, 22, 21, 20, 11, 6, 4])],
)
def test_the_eta_knows_of_larger_images_to_come_and_of_an_early_end(monkeypatch, sizes, max_steps, wanted):
    seconds = itertools.count()
    monkeypatch.setattr("relatum.train.loop.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    shown, config = Etas(), replace(TRAIN, epochs=2, max_steps=max_steps)
    fit(task(), loaders(epochs=2, sizes=sizes), config, display=shown)  # two epochs of five steps of one second each
    assert [round(eta) for eta in shown.steps][: len(wanted)] == wanted
    assert shown.epochs[0] == shown.steps[4] and shown.steps[-1] == 0


def test_tensorboard_files_are_written_when_asked(tmp_path):
    pytest.importorskip("tensorboard")
    fit(task(), loaders(), replace(TRAIN, max_steps=2, tensorboard=True), out=tmp_path, display=quiet())
    assert list((tmp_path / "tensorboard").glob("events.*"))


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("gpu", "unknown device 'gpu'"), ("meta", "not available here")])
def test_a_device_that_is_not_there_is_a_config_error(name, words):
    with pytest.raises(ConfigError, match=words):
        pick_device(name)


def test_precision_auto_depends_on_the_hardware_only(monkeypatch):
    cpu = pick_device("cpu")
    for native, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        assert pick_precision("auto", cpu) == expected
        assert pick_precision("float32", cpu) == "float32"
    with pytest.warns(UserWarning, match="has to imitate it"):
        assert pick_precision("bfloat16", cpu) == "bfloat16"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pick_precision("bfloat16", cpu) == "bfloat16"
    with autocast("bfloat16", cpu):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast("float32", cpu):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_an_older_gpu_that_imitates_bfloat16_takes_float32(monkeypatch):
    """Of such GPUs torch says that they support bfloat16, unless it is asked to leave the imitation out."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert pick_precision("auto", torch.device("cuda")) == "float32"


def test_threads_are_set_when_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    fit(task(), loaders(), replace(TRAIN, max_steps=1), display=quiet())
    assert asked == []
    fit(task(), loaders(), replace(TRAIN, max_steps=1, threads=3), display=quiet())
    assert asked == [3]
