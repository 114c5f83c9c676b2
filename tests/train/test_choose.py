"""Precision and threads by measurement: nothing of the run is touched, and the run keeps the answer it began with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny import (
    EVERYTHING,
    TRAIN,
    SignalAt,
    Talk,
    assert_as_if_nothing_happened,
    assert_same_bits,
    fit_everything,
    loaders,
    newest,
    quiet,
    task,
    weights_of,
)

from relatum.train import choose, fit
from relatum.train.choose import Setting, measure, pick

CPU = torch.device("cpu")
MEASURED = replace(EVERYTHING, precision="measure", threads=1)
RULE, OTHER = Setting("float32", 1), Setting("bfloat16", 1)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def told(monkeypatch, **images_per_second) -> list[int]:
    """Let measurements come to these speeds by precision; return a list that gets an entry at each."""
    calls: list[int] = []

    def answer(task, batch, device, settings, config):
        calls.append(len(batch))
        return {s: images_per_second[s.precision] / s.threads for s in settings if s.precision in images_per_second}

    monkeypatch.setattr(choose, "measure", answer)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return calls


def manifest(out):
    return json.loads((out / "manifest.json").read_text())


def test_the_rule_stays_unless_another_is_clearly_faster():
    assert pick({RULE: 100.0, OTHER: 109.0}, RULE) == RULE
    assert pick({RULE: 100.0, OTHER: 111.0}, RULE) == OTHER
    assert pick({OTHER: 5.0}, RULE) == OTHER, "the rule's choice was hopeless"


def test_measuring_leaves_the_task_and_chance_as_they_were():
    built, batch = task(relation=True, dropout=0.4).train(), next(iter(loaders().train.epoch(0)))
    before, chance, threads = weights_of(built), torch.get_rng_state(), torch.get_num_threads()
    speeds = measure(built, batch, CPU, [RULE, OTHER], TRAIN)
    assert RULE in speeds or OTHER in speeds
    assert min(speeds.values()) > 0
    assert_same_bits(weights_of(built), before)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(p.grad is None for p in built.parameters())
    assert (built.training, torch.get_num_threads()) == (True, threads)
    built(batch)  # what a measurement has to undo
    assert not torch.equal(torch.get_rng_state(), chance)
    assert not torch.equal(built.model.norm.running_mean, before["model.norm.running_mean"])


def test_a_hopeless_setting_gets_a_glimpse_only(monkeypatch):
    seen: list[tuple[str, int]] = []

    def seconds(task, batch, device, setting):
        seen.append((setting.precision, len(batch)))
        return 9.0 if setting == OTHER else 1.0

    monkeypatch.setattr(choose, "_seconds", seconds)
    monkeypatch.setattr(choose, "_SECONDS", 0.0)
    monkeypatch.setattr(choose, "_FEW", 2)
    batch = next(iter(loaders().train.epoch(0)))
    assert measure(task().train(), batch, CPU, [RULE, OTHER], TRAIN) == {RULE: 8.0}
    assert seen == [("float32", 2), ("float32", 2), ("bfloat16", 2), ("bfloat16", 2), ("float32", 8)]


@pytest.mark.parametrize(("threads", "expected"), [(0, {1, 4}), (3, {3})])
def test_threads_that_are_given_are_kept(threads, expected):
    rule = Setting("bfloat16", threads or 4)
    settings = choose._candidates(rule, replace(TRAIN, threads=threads))
    assert settings[0] == rule
    assert {s.threads for s in settings} == expected
    assert len(settings) == len(set(settings)) == 2 * len(expected)


def test_a_measured_run_is_the_run_with_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "pick", lambda speeds, rule: RULE)  # whatever this machine says
    fit_everything(tmp_path / "measured", config=MEASURED)
    fit_everything(tmp_path / "given", config=replace(EVERYTHING, precision="float32", threads=1))
    assert_as_if_nothing_happened(tmp_path / "measured", tmp_path / "given")
    entry = manifest(tmp_path / "measured")["measured"]
    assert (entry["precision"], entry["threads"]) == ("float32", 1)
    assert entry["images_per_second"]
    assert manifest(tmp_path / "measured")["precision"] == "float32"
    assert "measured" not in manifest(tmp_path / "given")


def test_what_was_measured_is_said_and_used(monkeypatch):
    told(monkeypatch, float32=100.0, bfloat16=300.0)
    shown, seen = Talk(), []
    built = task()
    built.model.fc.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    fit(built, loaders(splits=()), replace(TRAIN, precision="measure", threads=1, max_steps=1), display=shown)
    assert "Measured before the first step: bfloat16, 1 thread, 300 images/s (float32, 1 thread: 100)." in shown.said
    assert seen == [torch.bfloat16]


def test_threads_are_set_as_measured(monkeypatch):
    told(monkeypatch, float32=100.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    fit(task(), loaders(), replace(TRAIN, precision="measure", max_steps=1), display=quiet())
    assert asked == [1]


def test_a_resumed_run_does_not_choose_again(tmp_path, monkeypatch):
    calls = told(monkeypatch, float32=100.0, bfloat16=300.0)
    fit_everything(tmp_path / "whole", config=MEASURED)
    assert fit_everything(tmp_path / "stopped", SignalAt(7), MEASURED).status == "interrupted"
    assert len(calls) == 2
    calls = told(monkeypatch, float32=300.0, bfloat16=100.0)
    fit_everything(tmp_path / "stopped", config=MEASURED)
    assert calls == []
    assert manifest(tmp_path / "stopped")["precision"] == "bfloat16"
    assert_as_if_nothing_happened(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_that_began_by_the_rule_goes_on_by_it(tmp_path, monkeypatch):
    calls = told(monkeypatch, float32=100.0, bfloat16=300.0)
    fit_everything(tmp_path, SignalAt(7), replace(EVERYTHING, precision="auto"))
    kept = manifest(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["train"]["precision"] = "measure"
    (tmp_path / "config.json").write_text(json.dumps(config))
    fit_everything(tmp_path, config=replace(EVERYTHING, precision="measure"))
    assert calls == []
    assert manifest(tmp_path)["precision"] == kept["precision"] == "float32"
    assert newest(tmp_path)
