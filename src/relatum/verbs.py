"""What each verb takes and does. Arguments are declared by signatures; tyro parses them."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from relatum.config import EvalConfig, RunConfig
from relatum.config_files import check
from relatum.errors import ConfigError, RelatumError

Paths = Annotated[tuple[Path, ...], tyro.conf.Positional]
OnePath = Annotated[Path, tyro.conf.Positional]
ShotRule = Literal["standard", "oltr", "mislas", "prior-lt", "cifar10", "thirds"]


def demo(args: list[str]) -> None:
    """`relatum demo`."""

    def run(out: Path = Path("runs/demo"), seed: int = 0, epochs: int = 0) -> None:
        """Train a small ResNet three times on a generated long-tailed world: plain, balanced, balanced + BatchFormer.

        Args:
            out: folder for the three runs and the report.
            seed: seed of the training.
            epochs: epochs of each run; 0 takes the recipe's.
        """
        from relatum.recipes.demo import run_demo

        page = run_demo(out, seed, epochs, Console())
        print(page)

    tyro.cli(run, prog="relatum demo", args=args)


def inspect(args: list[str]) -> None:
    """`relatum inspect PATH`."""

    def run(path: OnePath, json: bool = False, plot: Path = Path("class-counts.png"), workers: int = 2) -> None:
        """Count classes, find rare ones, broken and duplicate files, and say what to do.

        Args:
            path: folder of class folders (with or without train/val/test), CSV file, or CIFAR folder.
            json: print everything as JSON and draw nothing.
            plot: where to write the picture of the class counts.
            workers: files read at a time.
        """
        from relatum.data.inspect import inspect_data
        from relatum.data.inspect_view import plot_counts, render

        found = inspect_data(path, workers=workers)
        if json:
            print(json_format.dumps(found.to_dict(), indent=1))
            return
        render(found, Console())
        print(f"plot: {plot_counts(found, plot)}")

    tyro.cli(run, prog="relatum inspect", args=args)


def recipes(args: list[str]) -> None:
    """`relatum recipes [list | show NAME | copy NAME [TARGET]]`."""
    from relatum.recipes.catalog import copy_recipe, find_recipe, list_recipes

    def list_all() -> None:
        """List all recipes with what each is."""
        known = list_recipes()
        width = max(len(recipe.name) for recipe in known)
        for recipe in known:
            print(f"{recipe.name:<{width}}  {recipe.title}")

    def show(name: Annotated[str, tyro.conf.Positional]) -> None:
        """Print a recipe file."""
        print(find_recipe(name).text, end="")

    def copy(
        name: Annotated[str, tyro.conf.Positional], target: Annotated[Path, tyro.conf.Positional] = Path()
    ) -> None:
        """Copy a recipe to edit it; train it with: relatum train FILE.toml."""
        print(copy_recipe(name, target))

    known: dict[str, Any] = {"list": list_all, "show": show, "copy": copy}
    tyro.extras.subcommand_cli_from_dict(known, prog="relatum recipes", args=args or ["list"])


def train(args: list[str]) -> int:
    """`relatum train RECIPE [--data.root PATH ...]`."""
    from relatum.recipes.catalog import find_recipe

    if not args or args[0].startswith("-"):
        print(
            "usage: relatum train RECIPE [--data.root PATH] [--KEY VALUE ...]\n\n"
            "RECIPE is a name from `relatum recipes` or a TOML file of yours.\n"
            "relatum train RECIPE --help lists every setting. Example:\n"
            "  relatum train long-tail --data.root photos/ --train.epochs 60"
        )
        return 0 if args else 2
    recipe = find_recipe(args[0])
    config = tyro.cli(RunConfig, prog=f"relatum train {args[0]}", default=recipe.config(), args=args[1:])
    check(config, "command line")
    out = Path(config.out or f"runs/{recipe.name.replace('/', '-')}-s{config.train.seed}")

    from relatum.recipes.classification import run
    from relatum.report import comparison_table

    done = run(config, recipe.name, out)
    if done.status == "interrupted":
        return 130
    Console().print(comparison_table({f"{out.name} ({split})": s.to_dict() for split, s in done.scores.items()}))
    print(f"{out}\nnext: relatum report {out}")
    return 0


def evaluate(args: list[str]) -> None:
    """`relatum evaluate RUN`."""

    def run(
        run: OnePath,
        shot_rule: ShotRule = "standard",
        adjust_tau: float = 0.0,
        tau_norm: float = 0.0,
        bootstrap: int = 1000,
        data_root: str = "",
        json: bool = False,
    ) -> None:
        """Score a trained run on its evaluation splits.

        Args:
            run: run directory.
            shot_rule: boundary between many, medium and few.
            adjust_tau: post-hoc logit adjustment with this strength; 0 is off.
            tau_norm: normalise the classifier rows with this power; 0 is off.
            bootstrap: resamples for the confidence interval.
            data_root: where the data is now, if it has moved.
            json: print all scores as JSON.
        """
        from relatum.recipes.classification import evaluate_run
        from relatum.report import comparison_table

        config = EvalConfig(shot_rule, adjust_tau, tau_norm, bootstrap)
        check(config, "command line")
        scores = {split: s.to_dict() for split, s in evaluate_run(run, config, data_root).items()}
        if json:
            print(json_format.dumps(scores, indent=1))
        else:
            Console().print(comparison_table({f"{run.name} ({split})": s for split, s in scores.items()}))

    tyro.cli(run, prog="relatum evaluate", args=args)


def predict(args: list[str]) -> None:
    """`relatum predict RUN IMAGE...`."""

    def run(
        run: OnePath,
        images: Paths,
        top: int = 3,
        format: Literal["table", "csv", "json"] = "table",
        out: Path | None = None,
    ) -> None:
        """Classify image files, or all images in folders.

        Args:
            run: run directory or checkpoint file.
            images: image files and folders.
            top: classes to name for each image.
            format: how to print.
            out: write to this file instead of standard output.
        """
        from relatum.predictions import write_predictions
        from relatum.trained import image_files, load

        if top < 1 or not images:
            raise ConfigError("predict needs at least one image, and --top of at least 1.")
        paths = image_files(images)
        rows = load(run).predict_files(paths, top)
        if out is None:
            write_predictions(rows, format, sys.stdout)
            return
        try:
            with out.open("w", encoding="utf-8", newline="") as stream:
                write_predictions(rows, format, stream)
        except OSError as error:
            raise RelatumError(f"cannot write {out}: {error.strerror}.") from error
        print(out)

    tyro.cli(run, prog="relatum predict", args=args)


def report(args: list[str]) -> None:
    """`relatum report RUN...`."""

    def run(runs: Paths, out: Path | None = None) -> None:
        """Write one self-contained HTML page about one or several runs.

        Args:
            runs: run directories, or folders that hold them.
            out: the page; default report.html in the run or beside the runs.
        """
        from relatum.report import report as write_report

        if not runs:
            raise ConfigError("report needs at least one run directory.")
        print(write_report(list(runs), out))

    tyro.cli(run, prog="relatum report", args=args)


def export(args: list[str]) -> None:
    """`relatum export RUN OUT`."""

    def run(run: OnePath, out: OnePath, formats: tuple[str, ...] = ("safetensors", "torch-export", "onnx")) -> None:
        """Write the plain model for people who do not have relatum, and check that it answers the same.

        Args:
            run: run directory or checkpoint file.
            out: folder to write into.
            formats: any of safetensors (a folder for timm), torch-export, onnx.
        """
        from relatum.models.export import export_model
        from relatum.trained import load

        for entry in export_model(load(run), out, formats):
            checked = "" if entry.max_difference is None else f"  largest logit difference {entry.max_difference:.1e}"
            print(f"{entry.format:<13}{entry.path}{checked}" + (f"\n{'':<13}{entry.note}" if entry.note else ""))

    tyro.cli(run, prog="relatum export", args=args)
