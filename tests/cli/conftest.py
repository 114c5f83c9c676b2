"""A tiny folder of images, a run trained on it, and a way to call the command line as a user does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relatum.cli import main

CLASSES = ("ant", "bee", "cat")
TRAINING = (
    "train", "shapes-lt", "--data.kind", "auto", "--data.long-tail", "none", "--data.image-size", "16",
    "--data.batch-size", "8", "--train.warmup-epochs", "0", "--train.epochs", "2", "--train.max-steps", "2",
    "--train.threads", "1",
)  # fmt: skip


def make_photos(root: Path, per_class: int = 10, side: int = 16) -> Path:
    """Write `per_class` noisy images of each class, each class with a brightness of its own."""
    draw = np.random.default_rng(0)
    for k, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = draw.integers(80 * k, 80 * k + 90, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Ten images of each class; do not write to it."""
    return make_photos(tmp_path_factory.mktemp("cli") / "photos")


@pytest.fixture
def own_photos(tmp_path) -> Path:
    """The same, for a test to spoil."""
    return make_photos(tmp_path / "own photos")


@pytest.fixture(scope="session")
def finished(photos, tmp_path_factory) -> Path:
    """A run directory after two steps; do not write to it."""
    out = tmp_path_factory.mktemp("cli") / "finished"
    assert main([*TRAINING, "--data.root", str(photos), "--out", str(out)]) == 0
    return out


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def relatum(capsys) -> Callable[..., tuple[int, str, str]]:
    """Call `relatum WORDS...` in this process: exit code, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return code, shown.out, shown.err

    return call


@pytest.fixture
def refused(relatum) -> Callable[..., str]:
    """Call `relatum WORDS...`, which must fail with one line on standard error and code 2; return that line."""

    def call(*words: object) -> str:
        code, _, err = relatum(*words)
        lines = err.splitlines()
        assert code == 2, f"exit code {code}: {err}"
        assert len(lines) == 1 and lines[0].startswith("relatum: error: "), err
        return lines[0].removeprefix("relatum: error: ")

    return call


@pytest.fixture
def training() -> Callable[..., list[str]]:
    """The words of `relatum train` for two steps on the folder `root`, with `more` options behind."""
    return lambda root, out="run", *more: [*TRAINING, "--data.root", str(root), "--out", str(out), *map(str, more)]
