"""Shared by the tests of spoilt runs: photos, a command that trains on them for a moment, and ways to spoil files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from relatum.cli import main

CLASSES = ("ant", "bee", "okapi")
# Three epochs of three steps, a checkpoint after each.
COMMAND = (
    "train", "shapes-lt", "--data.kind", "folder", "--data.long-tail", "none", "--data.image-size", "16",
    "--data.batch-size", "8", "--train.warmup-epochs", "0", "--train.epochs", "3", "--train.save-every", "1",
    "--train.eval-every", "1", "--train.threads", "1", "--train.device", "cpu", "--evaluate.bootstrap", "0",
)  # fmt: skip


def make_photos(root: Path, per_class: int = 10) -> Path:
    """Write `per_class` noisy images of each class, each class with a brightness of its own."""
    draw = np.random.default_rng(0)
    for k, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = draw.integers(80 * k, 80 * k + 90, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def train(photos: Path, out: Path, *more: str) -> int:
    """Run the command in this process and return its exit code."""
    return main([*COMMAND, "--data.root", str(photos), "--out", str(out), *more])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint files of a run, oldest first."""
    return sorted((run / "checkpoints").glob("*.safetensors"))


def flip(path: Path, place: int = -10, mask: int = 1) -> None:
    """Change bits of one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


def assert_same_end(out: Path, whole: Path) -> None:
    """Two runs ended in the same bits, rows and scores."""
    one, other = (load_file(checkpoints(run)[-1]) for run in (out, whole))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert _rows(out) == _rows(whole)
    assert (out / "scores.json").read_bytes() == (whole / "scores.json").read_bytes()
    assert json.loads((out / "manifest.json").read_text())["status"] == "finished"


def _rows(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) >= 6  # something to compare
    return [{key: value for key, value in row.items() if key != "images_per_second"} for row in rows]
