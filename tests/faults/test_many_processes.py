"""`torchrun … relatum train` is the training of one process: same losses, weights and metrics. It stops as one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from launch_kit import Ended, free_port, run_ranks, start_ranks, torchrun, wait_for
from safetensors.torch import load_file

from relatum import processes
from relatum.cli import main

RECIPE = """
[data]
kind = "shapes"
long_tail = "exponential"
imbalance = 20
largest = 41
batch_size = {batch}
augment = "none"
normalise = "half"

[model]
name = "vit-nano-p8"

[relation]
name = "batchformer"
dropout = 0.0
gather = true

[objective]
name = "balanced-softmax"

[train]
epochs = 3
lr = 0.02
precision = "float32"
ema = 0.9
seed = 2

[evaluate]
bootstrap = 20
"""
RELATUM = [sys.executable, "-m", "relatum"]


def write_recipes(folder: Path) -> None:
    (folder / "half.toml").write_text(RECIPE.format(batch=16))
    (folder / "whole.toml").write_text(RECIPE.format(batch=32))


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_checkpoint(run: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((run / "checkpoints").glob("step-*.safetensors"))[-1])


def assert_same_weights(one: Path, two: Path, *, tolerance: float, parts: tuple[str, ...] = ("model", "ema")) -> None:
    first, second = last_checkpoint(one), last_checkpoint(two)
    names = [name for name in first if name.split(".")[0] in parts]
    assert len(names) > 20
    for name in names:
        assert torch.allclose(first[name], second[name], rtol=0, atol=tolerance), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of two processes with half the batch each, and one of a single process with all of it."""
    folder = tmp_path_factory.mktemp("together")
    write_recipes(folder)
    done = torchrun(["train", "half.toml", "--out", "two"], folder)
    assert done.code == 0, done.err
    (folder / "two.out").write_text(done.out)
    here = Path.cwd()
    try:
        os.chdir(folder)
        assert main(["train", "whole.toml", "--out", "one"]) == 0
    finally:
        os.chdir(here)
    return folder


def test_losses_and_metrics_are_those_of_one_process(folder):
    together, alone = rows(folder / "two"), rows(folder / "one")
    assert [(r["kind"], r["step"]) for r in together] == [(r["kind"], r["step"]) for r in alone]
    assert len({(r["kind"], r["step"]) for r in together}) == len(together) == 6, "each once"
    for mine, other in zip(together, alone, strict=True):
        for key, value in other.items():
            if isinstance(value, float) and key != "images_per_second":
                assert mine[key] == pytest.approx(value, abs=2e-5), key


def test_no_sample_is_counted_twice(folder):
    one, two = (json.loads((folder / name / "scores.json").read_text())["test"] for name in ("one", "two"))
    assert two["samples"] == one["samples"] == 2000
    assert two["confusion"] == one["confusion"] if "confusion" in one else two["top1"] == one["top1"]
    assert two["top1"] == one["top1"] and two["interval"] == one["interval"]


def test_weights_and_their_average_are_those_of_one_process(folder):
    assert_same_weights(folder / "one", folder / "two", tolerance=2e-5)
    start = last_checkpoint(folder / "one")
    moved = max(float((start[f"model.{n}"] - start[f"ema.{n}"]).abs().max()) for n in ("head.weight", "cls_token"))
    assert moved > 1e-4, "the average lags behind, so it was compared with something"


def test_files_are_written_once_and_say_how_many_processes(folder):
    manifest = json.loads((folder / "two" / "manifest.json").read_text())
    assert (manifest["processes"], manifest["relation_batch"], manifest["status"]) == (2, 32, "finished")
    assert (folder / "two.out").read_text().count("top-1") == 1, "one process speaks"
    assert len(list((folder / "two" / "checkpoints").glob("step-*.safetensors"))) == 2
    assert not list((folder / "two").rglob("*.tmp"))
    assert {p.name for p in (folder / "two").iterdir()} == {p.name for p in (folder / "one").iterdir()}


def test_resume_with_the_same_number_is_exact_and_with_another_continues(folder):
    part = run_ranks([*RELATUM, "train", "half.toml", "--out", "part", "--train.max-steps", "10"], 2, folder)
    assert [e.code for e in part] == [0, 0], part
    copy = folder / "other"
    subprocess.run(["cp", "-r", str(folder / "part"), str(copy)], check=True)
    again = run_ranks([*RELATUM, "train", "half.toml", "--out", "part"], 2, folder)
    assert [e.code for e in again] == [0, 0], again
    assert "after step 10" in again[0].err and again[1].err == ""
    assert_same_weights(folder / "two", folder / "part", tolerance=0.0, parts=("model", "ema", "optimizer"))
    alone = subprocess.run(
        [*RELATUM, "train", "whole.toml", "--out", "other"], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert alone.returncode == 0, alone.stderr
    assert "after step 10" in alone.stderr
    assert_same_weights(folder / "one", copy, tolerance=2e-5)
    assert json.loads((copy / "manifest.json").read_text())["processes"] == 1


def test_another_number_with_the_same_batch_each_is_refused(folder):
    refused = subprocess.run(
        [*RELATUM, "train", "half.toml", "--out", "two"], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert refused.returncode == 2
    assert "images per step" in refused.stderr and "32" in refused.stderr and "16" in refused.stderr


def ended_as_one(ended: list[Ended], *codes: int) -> str:
    """All have ended, with these codes, and one message was shown; return it."""
    assert [e.code for e in ended] == list(codes), [e.err for e in ended]
    messages = [line for e in ended for line in e.err.splitlines() if line.startswith("relatum: error:")]
    assert len(messages) == 1, messages
    assert not any("Traceback" in e.err for e in ended)
    return messages[0]


def wait_for_checkpoint(run: Path) -> None:
    for _ in range(1200):
        if (run / "checkpoints" / "index.json").exists():
            return
        time.sleep(0.1)
    raise AssertionError("no checkpoint came")


LONG = ["--train.epochs", "500", "--train.eval-every", "0"]


def test_a_killed_process_ends_the_others(tmp_path):
    write_recipes(tmp_path)
    running = start_ranks([*RELATUM, "train", "half.toml", "--out", "run", *LONG], 2, tmp_path)
    wait_for_checkpoint(tmp_path / "run")
    running[1].kill()
    message = ended_as_one(wait_for(running), 1, -signal.SIGKILL)
    assert "another process ended" in message and "rerun the same command" in message
    torch.stack([t.float().abs().max() for t in last_checkpoint(tmp_path / "run").values()])  # readable


def test_a_process_that_hangs_does_not_hold_the_others_for_ever(tmp_path):
    write_recipes(tmp_path)
    limit = {"RELATUM_TIMEOUT_MINUTES": "0.2"}
    running = start_ranks([*RELATUM, "train", "half.toml", "--out", "run", *LONG], 2, tmp_path, limit)
    wait_for_checkpoint(tmp_path / "run")
    running[1].send_signal(signal.SIGSTOP)
    _, err = running[0].communicate(timeout=120)
    assert running[0].returncode == 1
    assert "did not answer for 0.2 minutes" in err
    running[1].kill()
    running[1].communicate()


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms for recv",
        "Application timeout caused pair closure",  # of the exchange after the one that timed out
    ],
)
def test_both_words_of_a_timeout_are_known(text, monkeypatch):
    """Which of the two comes up depends on which thread's exchange is asked first."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "another process ended, or did not answer" in processes.connection_lost(RuntimeError(text))
    assert processes.connection_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == ""
    monkeypatch.delenv("WORLD_SIZE")
    assert processes.connection_lost(RuntimeError(text)) == ""


def test_an_error_in_one_process_is_told_once_and_ends_all(tmp_path):
    """The last image of the evaluation split is read by the second process only."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 6)):
        for name in ("a", "b"):
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(place / f"{number}.png")
    (tmp_path / "photos" / "test" / "b" / "5.png").write_bytes(b"no image")
    words = ["train", "long-tail", "--data.root", "photos", "--data.batch-size", "8", "--data.image-size", "16"]
    words += ["--model.name", "resnet20-cifar", "--train.epochs", "2", "--train.warmup-epochs", "0", "--out", "run"]
    ended = run_ranks([*RELATUM, *words], 2, tmp_path)
    assert sorted(e.code for e in ended) in ([1, 2], [2, 2])
    messages = [line for e in ended for line in e.err.splitlines() if line.startswith("relatum: error:")]
    assert len(messages) == 1 and "5.png" in messages[0], [e.err for e in ended]


def test_ctrl_c_saves_once_and_the_same_command_goes_on(tmp_path):
    write_recipes(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    command += [str(free_port()), "-m", "relatum", "train", "half.toml", "--out", "run", *LONG]
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True, env=dict(os.environ)
    )
    wait_for_checkpoint(tmp_path / "run")
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: launcher and processes get it at once
    _, err = running.communicate(timeout=240)
    assert running.returncode != 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted", err
    saved = manifest["steps"]
    assert f"step-{saved:09d}.safetensors" in {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    again = torchrun(["train", "half.toml", "--out", "run", *LONG, "--train.max-steps", str(saved + 3)], tmp_path)
    assert again.code == 0, again.err
    assert f"after step {saved}" in again.err


STAGES = """
[data]
kind = "shapes"
long_tail = "exponential"
imbalance = 20
largest = 41
batch_size = {batch}
augment = "none"
normalise = "half"

[model]
name = "vit-nano-p8"
pool = "avg"

[objective]
name = "balanced-bce"

[pretrain]
method = "mae"
augment = "none"
epochs = 2
warmup_epochs = 0.5
batch_size = {batch}
pictures = 0

[train]
epochs = 1
lr = 0.01
precision = "float32"

[evaluate]
bootstrap = 0
"""


def test_two_stages_run_in_two_processes(tmp_path, monkeypatch):
    """Masks are drawn by each process, so the losses are not those of one; what is measured covers the whole split."""
    (tmp_path / "half.toml").write_text(STAGES.format(batch=16))
    ended = run_ranks([*RELATUM, "train", "half.toml", "--out", "two"], 2, tmp_path)
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]
    assert ended[0].out.count("top-1") == 1 and ended[1].out == ended[1].err == ""
    first, second = tmp_path / "two" / "pretrain", tmp_path / "two"
    assert json.loads((first / "scores.json").read_text())["test"]["samples"] == 2000
    assert json.loads((second / "scores.json").read_text())["test"]["samples"] == 2000
    assert (first / "encoder.safetensors").is_file() and (first / "probe.json").is_file()
    manifests = [json.loads((place / "manifest.json").read_text()) for place in (first, second)]
    assert [(m["processes"], m["status"]) for m in manifests] == [(2, "finished")] * 2
    (tmp_path / "whole.toml").write_text(STAGES.format(batch=32))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "whole.toml", "--out", "one"]) == 0
    assert [r["step"] for r in rows(tmp_path / "one")] == [r["step"] for r in rows(second)]
