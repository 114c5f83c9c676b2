"""`relatum demo`: the whole house in a few minutes, on a world that needs no download."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from relatum.errors import TrainingError
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


def run_demo(out: Path, seed: int, epochs: int, console: Console) -> Path:
    """Train the three variants, print their table, and return the path of the report.

    Args:
        out: folder for the runs and the report.
        seed: seed of the training.
        epochs: epochs of each run; 0 takes the recipe's.
        console: where the table goes.
    """
    scores: dict[str, Scores] = {}
    for name, recipe in VARIANTS.items():
        config = find_recipe(recipe).config()
        train = replace(config.train, seed=seed, epochs=epochs or config.train.epochs)
        done = run(replace(config, train=train), recipe, out / name, Display(name))
        if done.status == "interrupted":
            raise TrainingError("demo interrupted; run the same command again to continue where it stopped.")
        scores[name] = done.scores["test"]
    console.print(comparison_table({name: entry.to_dict() for name, entry in scores.items()}))
    return report([out / name for name in VARIANTS])
