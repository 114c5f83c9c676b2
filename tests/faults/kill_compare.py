"""What an interrupted run must have in common with one that nobody touched, and small data to train on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors import safe_open

TRAINING = (
    "train", "shapes-lt", "--data.kind", "auto", "--data.long-tail", "none", "--data.image-size", "16",
    "--data.batch-size", "4", "--data.eval-batch-size", "3", "--data.mixup", "0.4", "--data.workers", "0",
    "--objective.name", "cross-entropy", "--objective.drw-start", "0.5", "--objective.beta", "0.9",
    "--train.ema", "0.8", "--train.epochs", "4", "--train.warmup-epochs", "1", "--train.eval-every", "1",
    "--train.save-every", "1", "--train.precision", "float32", "--train.threads", "1", "--train.device", "cpu",
)  # fmt: skip
STEPS, EPOCH = 16, 4  # of that training on those photos


def changed(words: Sequence[object], option: str, value: str) -> list[str]:
    """Return the words of a command with another value for an option that may stand among them."""
    found = [str(word) for word in words]
    if option not in found:
        return [*found, option, value]
    found[found.index(option) + 1] = value
    return found


def make_photos(root: Path) -> Path:
    """Write 11, 7 and 4 noisy images of three classes; a fifth of each is held out, 17 are left to train on."""
    draw = np.random.default_rng(0)
    for k, (name, count) in enumerate((("ant", 11), ("bee", 7), ("cat", 4))):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(60 * k, 60 * k + 120, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def newest_step(run: Path) -> int:
    """The step that a rerun goes on from; 0 if it begins anew."""
    index = run / "checkpoints" / "index.json"
    return json.loads(index.read_text())[-1]["step"] if index.exists() else 0


def tensors(run: Path) -> dict[str, str]:
    """The hash of every tensor in the newest checkpoint: weights, moving average, optimizer, random state."""
    entry = json.loads((run / "checkpoints" / "index.json").read_text())[-1]
    with safe_open(run / "checkpoints" / entry["file"], framework="np") as file:
        return {name: hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in file.keys()}  # noqa: SIM118


def rows(run: Path) -> list[dict]:
    """metrics.jsonl without the speed, the one thing that two runs never share."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]


def unfinished_files(run: Path) -> list[str]:
    """Temporary files that somebody left behind."""
    return sorted(str(path.relative_to(run)) for path in run.rglob(".*") if path.suffix in (".tmp", ".part"))


def assert_two_good_checkpoints(run: Path) -> None:
    folder = run / "checkpoints"
    entries = json.loads((folder / "index.json").read_text())
    assert [entry["file"] for entry in entries] == sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(entries) == 2
    for entry in entries:
        assert hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
        with safe_open(folder / entry["file"], framework="np") as file:
            assert all(file.get_tensor(name) is not None for name in file.keys())  # noqa: SIM118


def assert_same_run(run: Path, whole: Path) -> None:
    """Everything that lasts is the same, bit for bit."""
    found, expected = tensors(run), tensors(whole)
    assert {name.partition(".")[0] for name in expected} >= {"model", "optimizer", "rng"}
    assert [name for name in expected if found.get(name) != expected[name]] == [] and found.keys() == expected.keys()
    assert rows(run) == rows(whole)
    keys = [(row["kind"], row.get("split"), row["step"]) for row in rows(run)]
    assert len(set(keys)) == len(keys) > 0, "a step is there twice"
    assert json.loads((run / "scores.json").read_text()) == json.loads((whole / "scores.json").read_text())
    assert json.loads((run / "manifest.json").read_text())["status"] == "finished"
    assert unfinished_files(run) == []
    assert_two_good_checkpoints(run)
