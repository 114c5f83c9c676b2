"""A run directory used again: not trained twice, not mixed up with another run, and no traceback where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import (
    EVERYTHING,
    TRAIN,
    Net,
    SignalAt,
    assert_as_if_nothing_happened,
    fit_everything,
    loaders,
    quiet,
    task,
)

from relatum.config import RunConfig
from relatum.config_files import to_dict
from relatum.errors import CheckpointError, ConfigError
from relatum.train import RunDirectory, fit


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = fit_everything(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    built = task(relation=True, dropout=0.4)
    built.model.forward = lambda images: pytest.fail("trained or evaluated again")
    again = fit(built, loaders(augment="weak", mixup=0.4, seed=3), EVERYTHING, out=tmp_path, display=quiet())
    assert again.status == "finished"
    assert (again.scores, again.steps) == (first.scores, first.steps)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_max_steps_ended_goes_on_when_it_is_raised(tmp_path, whole):
    for steps in (3, 5, 9):
        done = fit_everything(tmp_path, config=replace(EVERYTHING, max_steps=steps))
        assert (done.status, done.steps) == ("finished", steps)
    assert fit_everything(tmp_path, config=replace(EVERYTHING, max_steps=9)).steps == 9
    assert fit_everything(tmp_path).steps == 15
    assert_as_if_nothing_happened(tmp_path, whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.2}, "train.lr was 0.05, now 0.2"),
        ({"epochs": 4}, "train.epochs was 3, now 4"),
        ({"steps": (0.5,)}, r"train.steps was \[0.8, 0.9\], now \[0.5\]"),
        ({"ema": 0.0}, "train.ema was 0.9, now 0.0"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, changes, words):
    fit_everything(tmp_path, SignalAt(2))
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match=words):
        fit_everything(tmp_path, config=replace(EVERYTHING, **changes))
    assert (tmp_path / "config.json").read_text() == before


def test_settings_that_do_not_matter_may_change(tmp_path):
    config = RunConfig()
    run = RunDirectory(tmp_path, to_dict(config))
    run.update_manifest(status="finished")
    with pytest.raises(ConfigError, match=r"data.batch_size was 128, now 64"):
        RunDirectory(tmp_path, to_dict(replace(config, data=replace(config.data, batch_size=64))))
    free = replace(
        config,
        out="elsewhere",
        data=replace(config.data, workers=7),
        train=replace(config.train, device="cpu", threads=1, tensorboard=True, max_steps=3),
    )
    assert RunDirectory(tmp_path, to_dict(free)).manifest["status"] == "finished"


def test_settings_may_be_corrected_while_there_is_no_checkpoint(tmp_path):
    RunDirectory(tmp_path, {"data": {"root": "fotos"}}).update_manifest(status="running", command="old")
    run = RunDirectory(tmp_path, {"data": {"root": "photos"}})
    assert json.loads((tmp_path / "config.json").read_text()) == {"data": {"root": "photos"}}
    assert run.manifest == {}


@pytest.mark.parametrize(
    ("other", "data", "words"),
    [
        ({"model": Net(width=6)}, {}, "task.parameters was 651, now 489"),
        ({"relation": True}, {}, "task.relation was 'none', now .BatchFormer"),
        ({}, {"batch_size": 4}, "data.batch_size was 8, now 4"),
        ({}, {"images": 44}, "data.train: 40 images before, 44 now, class red 14 → 15"),
    ],
)
def test_another_task_or_other_data_in_the_same_directory_is_refused_by_name(tmp_path, other, data, words):
    fit(task(), loaders(), replace(TRAIN, epochs=1), out=tmp_path, display=SignalAt(2))
    with pytest.raises(ConfigError, match=words):
        fit(task(**other), loaders(**data), replace(TRAIN, epochs=1), out=tmp_path, display=quiet())


def test_a_checkpoint_that_does_not_fit_the_model_is_one_clear_error(tmp_path):
    """A directory that the caller describes does not tell one model from the other."""
    fit(task(), loaders(), TRAIN, out=RunDirectory(tmp_path, {}), display=SignalAt(2))
    for other in ({"model": Net(width=6)}, {"relation": True}):
        with pytest.raises(CheckpointError, match="another model or optimizer than this run"):
            fit(task(**other), loaders(), TRAIN, out=RunDirectory(tmp_path, {}), display=quiet())


def test_an_unwritable_run_directory_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file" / "run", Path("/proc/relatum/run")):
        with pytest.raises(CheckpointError, match="cannot write to"):
            fit(task(), loaders(), TRAIN, out=place, display=quiet())


def test_settings_that_an_earlier_version_did_not_have_count_as_their_defaults(tmp_path):
    old = to_dict(RunConfig())
    del old["evaluate"]["mini_batch"]
    RunDirectory(tmp_path, old).update_manifest(status="finished")
    now = replace(RunConfig(), evaluate=replace(RunConfig().evaluate, mini_batch=True))
    with pytest.raises(ConfigError, match=r"evaluate.mini_batch was None, now True"):
        RunDirectory(tmp_path, to_dict(now))
    assert RunDirectory(tmp_path, to_dict(RunConfig())).manifest["status"] == "finished"


def test_a_full_disk_while_rows_are_written_is_one_clear_error(tmp_path):
    run = RunDirectory(tmp_path, {})
    run.metrics_file = tmp_path / "checkpoints"  # cannot be opened as a file
    with pytest.raises(CheckpointError, match="cannot write"):
        run.append_metrics({"step": 1})


def test_unreadable_records_are_named(tmp_path):
    RunDirectory(tmp_path, {})
    (tmp_path / "manifest.json").write_text("{half")
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be read"):
        RunDirectory(tmp_path, {})
