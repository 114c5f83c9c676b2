"""`relatum demo`: the whole house in a few minutes, on a world that needs no download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from relatum.config import RunConfig
from relatum.evaluate import Scores
from relatum.recipes.catalog import find_recipe
from relatum.recipes.classification import run
from relatum.report import comparison_table, report
from relatum.train import Display

VARIANTS = {
    "cross-entropy": "shapes-lt/cross-entropy",
    "balanced-softmax": "shapes-lt/balanced-softmax",
    "balanced-softmax+batchformer": "shapes-lt",
}
# Short and of one width, so that the bars line up and fit a terminal of 80 columns.
TITLES = ("cross-entropy", "balanced softmax", "with BatchFormer")


def run_demo(out: Path, seed: int, epochs: int, console: Console) -> Path | None:
    """Train the three variants, print their table, and return the path of the report; None after Ctrl-C.

    Args:
        out: folder for the runs and the report.
        seed: seed of the training.
        epochs: epochs of each run; 0 takes the recipe's.
        console: where the table goes.
    """
    scores: dict[str, Scores] = {}
    for number, (name, recipe) in enumerate(VARIANTS.items(), 1):
        display = Display(f"{number}/{len(VARIANTS)} {TITLES[number - 1]:<16}")
        done = run(_settings(recipe, seed, epochs), recipe, out / name, display)
        if done.status == "interrupted":
            return None
        scores[name] = done.scores["test"]
    console.print(comparison_table({name: entry.to_dict() for name, entry in scores.items()}))
    return report([out / name for name in VARIANTS])


def _settings(recipe: str, seed: int, epochs: int) -> RunConfig:
    """The recipe with another seed and length; the warm-up keeps its share of the epochs."""
    config = find_recipe(recipe).config()
    epochs = epochs or config.train.epochs
    warmup = config.train.warmup_epochs * epochs / config.train.epochs
    return replace(config, train=replace(config.train, seed=seed, epochs=epochs, warmup_epochs=warmup))
