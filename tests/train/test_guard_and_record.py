"""A loss that is not finite stops before the step; what a run writes down about itself."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import CLASSES, TRAIN, Net, loaders, newest, quiet, rows, task, weights_of

import relatum
from relatum.errors import ConfigError, TrainingError
from relatum.objectives import CrossEntropy
from relatum.train import RunDirectory, fit, record
from relatum.train.guard import Interrupts
from relatum.train.meter import MetricsLog


class _Breaking(CrossEntropy):
    """Cross-entropy until call `at`; then the loss or its gradient is not finite."""

    def __init__(self, at, how):
        super().__init__()
        self.at, self.how, self.calls = at, how, 0

    def forward(self, logits, targets, features=None):
        self.calls += 1
        loss = super().forward(logits, targets, features)
        if self.calls < self.at:
            return loss
        if self.how == "gradient":  # 0 in value, infinite in slope
            return loss + (logits.sum() - logits.sum().detach()).abs().sqrt()
        return loss * {"nan": math.nan, "inf": math.inf}[self.how]


def _fit_breaking(at, how, out=None, config=TRAIN):
    built = task()
    built.objective, before = _Breaking(at, how), []
    step = torch.optim.SGD.step

    def look(self, closure=None):
        result = step(self, closure)
        before.append({name: p.detach().clone() for name, p in built.model.named_parameters()})
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", look)
        with pytest.raises(TrainingError) as caught:
            fit(built, loaders(), config, out=out, display=quiet())
    return built, before, str(caught.value)


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
def test_a_number_that_is_not_finite_stops_before_the_step(tmp_path, how):
    built, before, message = _fit_breaking(8, how, tmp_path)
    assert len(before) == 7
    assert not torch.equal(before[5]["fc.weight"], before[6]["fc.weight"])  # steps do change the weights
    for name, parameter in built.model.named_parameters():
        assert torch.equal(parameter, before[6][name])
    what = "gradient" if how == "gradient" else "loss"
    assert f"the {what} is not finite at step 7" in message
    assert "--train.lr" in message
    report = json.loads((tmp_path / "failure.json").read_text())
    assert (report["step"], report["epoch"]) == (7, 1.4)
    assert not math.isfinite(float(report["gradient_norm"]))
    assert report["samples"] == list(loaders().train.epoch(1))[2].index.tolist()


def test_the_checkpoint_before_a_failure_stays_and_the_run_goes_on_from_it(tmp_path):
    clean = tmp_path / "clean"
    fit(task(), loaders(), TRAIN, out=clean, display=quiet())
    failed = tmp_path / "failed"
    _fit_breaking(8, "nan", failed)
    saved = newest(failed)
    assert all(tensor.double().isfinite().all() for tensor in saved.values())
    assert [path.name for path in failed.glob("checkpoints/*.safetensors")] == ["step-000000005.safetensors"]
    mended = task()
    mended.objective = _Breaking(math.inf, "nan")  # the same objective, which now holds
    fit(mended, loaders(), TRAIN, out=failed, display=quiet())
    assert torch.equal(newest(failed)["model.fc.weight"], newest(clean)["model.fc.weight"])
    assert rows(failed) == rows(clean)


def test_a_failure_names_the_samples_of_the_whole_group(tmp_path):
    _fit_breaking(1, "nan", tmp_path, replace(TRAIN, accumulate=2))
    batches = list(loaders().train.epoch(0))[:2]
    report = json.loads((tmp_path / "failure.json").read_text())
    assert report["samples"] == [index for batch in batches for index in batch.index.tolist()]


def test_without_a_directory_a_failure_is_still_one_clear_error():
    *_, message = _fit_breaking(1, "inf")
    assert "not finite at step 0" in message
    assert "failure.json" not in message


def test_interrupts_do_nothing_outside_the_main_thread():
    import signal
    import threading

    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with Interrupts() as interrupts:
            seen.append((interrupts.requested, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


# -- metrics.jsonl -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", [False, True])
def test_rows_have_the_promised_keys_and_finite_values(tmp_path, relation):
    fit(task(relation=relation), loaders(splits=("val", "test")), TRAIN, out=tmp_path, display=quiet())
    found = rows(tmp_path, speed=True)
    parts = (
        ["loss/plain", "loss/related", "accuracy/plain", "accuracy/related", "agreement"] if relation else ["accuracy"]
    )
    train = {"kind", "epoch", "step", "loss", "lr", "images_per_second", *parts}
    evals = {"kind", "split", "epoch", "step", "top1", "top5", "many", "medium", "few", "nll", "ece"}
    for row in found:
        assert set(row) == (train if row["kind"] == "train" else evals)
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))
        assert row["epoch"] == row["step"] / 5
    assert all(row["many"] is None and row["few"] is not None for row in found if row["kind"] == "eval")
    steps = [row["step"] for row in found if row["kind"] == "train"]
    assert steps == [5, 10, 15]
    assert [row["step"] for row in found] == sorted(row["step"] for row in found)


def test_a_train_row_holds_the_means_since_the_last_one(tmp_path):
    losses, built = [], task()
    forward = built.forward

    def look(batch):
        output = forward(batch)
        losses.append(float(output["loss"].detach()))
        return output

    built.forward = look
    fit(built, loaders(), replace(TRAIN, epochs=2), out=tmp_path, display=quiet())
    assert [row["loss"] for row in rows(tmp_path, kind="train")] == pytest.approx(
        [sum(losses[:5]) / 5, sum(losses[5:]) / 5], rel=1e-9
    )


def test_means_weigh_micro_batches_by_their_images(tmp_path):
    log = MetricsLog(RunDirectory(tmp_path, {}))
    log.add({"loss": torch.tensor(1.0), "logits": torch.zeros(3, 2)}, 3)
    log.add({"loss": torch.tensor(5.0), "logits": torch.zeros(1, 2)}, 1)
    log.count(2.0, 0.1)
    log.write_train(1, 0.5)
    (row,) = rows(tmp_path, speed=True)
    expected = {"kind": "train", "epoch": 0.5, "step": 1, "loss": 2.0, "lr": 0.1, "images_per_second": 2.0}
    assert row == expected  # logits are no scalar, and no part


def test_a_meter_goes_on_from_its_state(tmp_path):
    def run(log, values):
        for value in values:
            log.add({"loss": torch.tensor(value)}, 2)
            log.count(1.0, 0.1)

    straight, first = MetricsLog(RunDirectory(tmp_path / "a", {})), MetricsLog(RunDirectory(tmp_path / "b", {}))
    run(straight, [1.0, 2.0, 4.0])
    run(first, [1.0, 2.0])
    second = MetricsLog(first.directory)
    second.restore(json.loads(json.dumps(first.state())))
    run(second, [4.0])
    straight.write_train(3, 1.0)
    second.write_train(3, 1.0)
    assert rows(tmp_path / "a", speed=True) == rows(tmp_path / "b", speed=True)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_part_that_only_some_steps_have_is_averaged_over_those(tmp_path, cut):
    log = MetricsLog(RunDirectory(tmp_path, {}))
    steps = [({"loss": 1.0}, 3), ({"loss": 5.0, "agreement": 0.5}, 1), ({"loss": 2.0, "agreement": 1.0}, 3)]
    for number, (parts, images) in enumerate(steps):
        if number == cut:  # the counts survive an interruption
            state, log = log.state(), MetricsLog(log.directory)
            log.restore(json.loads(json.dumps(state)))
        log.add({name: torch.tensor(value) for name, value in parts.items()}, images)
        log.count(1.0, 0.1)
    log.write_train(3, 1.0)
    (row,) = rows(tmp_path)
    assert row["loss"] == pytest.approx((3 * 1 + 5 + 3 * 2) / 7)
    assert row["agreement"] == pytest.approx((0.5 + 3 * 1.0) / 4)


def test_the_state_of_a_meter_without_counts_is_read(tmp_path):
    """As earlier versions left it: every part was there at every step."""
    log = MetricsLog(RunDirectory(tmp_path, {}))
    log.add({"loss": torch.tensor(1.0)}, 2)
    old = {name: value for name, value in log.state().items() if name != "counted"}
    log.restore(old)
    log.add({"loss": torch.tensor(4.0)}, 1)
    log.write_train(2, 1.0)
    assert rows(tmp_path)[0]["loss"] == pytest.approx(2.0)


def _three_rows(path, middle=b'{"kind": "train", "step": 2}'):
    run = RunDirectory(path, {})
    for step in (1, 2, 3):
        run.append_metrics({"kind": "train", "step": step})
    run.metrics_file.write_bytes(run.metrics_file.read_bytes().replace(b'{"kind": "train", "step": 2}', middle))
    return run


def test_rows_after_the_checkpoint_and_half_a_row_are_cut_off(tmp_path):
    run = _three_rows(tmp_path)
    with run.metrics_file.open("a") as file:
        file.write('{"st')
    assert run.keep_metrics(2) == 2
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


@pytest.mark.parametrize("middle", [b'{"step":', b"\0" * 11, b"\xff\xfe", b""], ids=["half", "zeros", "noise", "empty"])
def test_a_damaged_row_among_those_that_are_kept_is_said_and_moves_no_other_into_its_place(tmp_path, middle):
    run = _three_rows(tmp_path, middle)
    with pytest.warns(UserWarning, match=r"metrics.jsonl has lost 1 of its first 2 rows"):
        assert run.keep_metrics(2) == 1
    assert [row["step"] for row in rows(tmp_path)] == [1]


def test_missing_rows_are_said(tmp_path):
    run = _three_rows(tmp_path)
    with pytest.warns(UserWarning, match=r"has lost 2 of its first 5 rows"):
        assert run.keep_metrics(5) == 3
    run.metrics_file.unlink()
    with pytest.warns(UserWarning, match=r"has lost 5 of its first 5 rows"):
        assert run.keep_metrics(5) == 0


def test_a_row_is_on_disk_before_anything_counts_on_it(tmp_path, monkeypatch):
    run, synced, sync = RunDirectory(tmp_path, {}), [], os.fsync

    def look(handle):
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    for _ in range(2):
        run.append_metrics({"step": 1})
    assert synced == [run.metrics_file, tmp_path, run.metrics_file]  # and once the name of the new file


# -- manifest.json and the rest ----------------------------------------------------------------------------------------


def test_the_manifest_says_what_a_result_depends_on(tmp_path):
    done = fit(task(relation=True), loaders(), replace(TRAIN, seed=7), out=tmp_path, display=quiet())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    expected = {
        "relatum": relatum.__version__,
        "seed": 7,
        "class_names": list(CLASSES),
        "class_counts": [14, 13, 13],
        "relation_batch": 8,
        "parameters": sum(p.numel() for p in Net().parameters()),  # of the model that is shipped
        "selection": "last epoch",
        "status": "finished",
        "device": "cpu",
        "precision": "float32",
        "steps": 15,
    }
    assert {key: manifest[key] for key in expected} == expected
    assert {"torch", "timm", "numpy", "python"} <= set(manifest["versions"])
    assert {"machine", "processor", "cores", "threads", "accelerator"} == set(manifest["hardware"])
    assert "git" in manifest
    assert manifest["seconds"] == pytest.approx(done.seconds, abs=1e-3)
    assert manifest["images_per_second"] == pytest.approx(15 * 8 / done.seconds, rel=0.05)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "scores.json",
        "checkpoints",
    }
    assert json.loads((tmp_path / "scores.json").read_text()) == {"val": done.scores["val"].to_dict()}


def test_without_a_relation_there_is_no_relation_batch(tmp_path):
    fit(task(), loaders(), replace(TRAIN, max_steps=1), out=tmp_path, display=quiet())
    assert json.loads((tmp_path / "manifest.json").read_text())["relation_batch"] is None


def test_speed_counts_the_images_that_were_seen(tmp_path):
    """Five micro-batches in groups of two: the last group is smaller."""
    done = fit(task(), loaders(), replace(TRAIN, epochs=1, accumulate=2), out=tmp_path, display=quiet())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["steps"] == 3
    assert manifest["images_per_second"] * done.seconds == pytest.approx(40, rel=0.05)


def test_time_spent_waiting_for_data_counts(monkeypatch):
    data, now = loaders(), [0.0]
    epoch = data.train.epoch

    def slow(*place):
        for batch in epoch(*place):
            now[0] += 10.0
            yield batch

    data.train.epoch = slow
    monkeypatch.setattr("relatum.train.loop.time.perf_counter", lambda: now[0])
    assert fit(task(), data, replace(TRAIN, epochs=1), display=quiet()).seconds == 50.0


def test_surroundings_survive_a_place_without_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert record.surroundings()["git"] is None
    monkeypatch.setenv("PATH", "")
    assert record.surroundings()["git"] is None


def test_the_config_is_kept_for_people_when_given(tmp_path):
    RunDirectory(tmp_path, {"train": {"lr": 0.1}}, "[train]\nlr = 0.1\n")
    assert (tmp_path / "config.toml").read_text() == "[train]\nlr = 0.1\n"
    assert json.loads((tmp_path / "config.json").read_text()) == {"train": {"lr": 0.1}}
    assert RunDirectory(tmp_path, {"train": {"lr": 0.1}}).read_scores() == {}


def test_an_empty_training_loader_is_a_config_error():
    data = loaders()
    object.__setattr__(data, "train", type("Empty", (), {"__len__": lambda self: 0, "batch_size": 8})())
    with pytest.raises(ConfigError, match="has no batch"):
        fit(task(), data, TRAIN, display=quiet())


def test_weights_are_those_that_were_scored(tmp_path):
    built = task()
    fit(built, loaders(), TRAIN, out=tmp_path, display=quiet())
    saved = newest(tmp_path)
    assert all(torch.equal(tensor, saved[f"model.{name}"]) for name, tensor in weights_of(built.model).items())
