"""What each verb takes and does. Arguments are declared by signatures, positional-only ones without a `--name`."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from relatum import stopping
from relatum.arguments import call, override
from relatum.config import DataConfig, EvalConfig
from relatum.config_files import check
from relatum.errors import ConfigError, DataError, suggest
from relatum.terminal import bar, print_pretraining, print_scores, tracked

Run = Annotated[Path, tyro.conf.arg(metavar="RUN")]
Runs = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")]
Images = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="IMAGE ...", help_behavior_hint="(required)")]
RecipeName = Annotated[str, tyro.conf.arg(metavar="RECIPE")]
MaybePath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
MaybePlace = Annotated[Path | None, tyro.conf.arg(metavar="[PATH]", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
ShotRule = Literal["standard", "oltr", "mislas", "prior-lt", "cifar10", "thirds"]
Format = Literal["table", "csv", "json"]
ExportFormat = Literal["safetensors", "torch-export", "onnx"]


def demo(args: list[str]) -> int:
    """`relatum demo`."""

    def run(out: Path = Path("runs/demo"), seed: int = 0, epochs: int = 0) -> int:
        """Train a small ResNet three times on a generated long-tailed world: plain, balanced, balanced + BatchFormer.

        Args:
            out: folder for the three runs and the report.
            seed: seed of the training.
            epochs: epochs of each run; 0 takes the recipe's.
        """
        from relatum.recipes.demo import run_demo

        page = run_demo(out, seed, epochs, Console())
        if page is None:
            return stopping.exit_code()
        print(page)
        return 0

    return call(run, "relatum demo", args)


def inspect(args: list[str]) -> None:
    """`relatum inspect PATH`."""

    def run(
        path: MaybePlace = None,
        /,
        recipe: Annotated[str, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")] = "",
        train_list: MaybePath = None,
        val_list: MaybePath = None,
        test_list: MaybePath = None,
        class_names: MaybePath = None,
        counts_only: Flag = False,
        json: Flag = False,
        plot: Path = Path("class-counts.png"),
        workers: int = 2,
    ) -> None:
        """Count classes, find rare ones, broken and duplicate files, and say what to do.

        Args:
            path: folder of class folders (with or without train/val/test), CSV file, CIFAR folder, or image root of
                lists.
            recipe: take the data settings of this recipe (layout, lists, long-tail cut); PATH replaces its data.root.
            train_list: `path label` list of the training images, plain or gzipped.
            val_list: the same of the validation images.
            test_list: the same of the test images.
            class_names: file with one class name per line, in the order of the class ids.
            counts_only: count what is listed without looking into a file.
            json: print everything as JSON and draw nothing.
            plot: where to write the picture of the class counts.
            workers: files read at a time.
        """
        from relatum.data.inspect import inspect_data
        from relatum.data.inspect_view import plot_counts, render
        from relatum.recipes.catalog import find_recipe

        if workers < 1:
            raise ConfigError(f"--workers is {workers}; it must be at least 1.")
        given = {"root": path, "train_list": train_list, "val_list": val_list, "test_list": test_list}
        named = {key: str(value) for key, value in {**given, "class_names": class_names}.items() if value is not None}
        if not recipe and not named.keys() & {"root", "train_list"}:
            raise ConfigError("relatum inspect needs PATH, --train-list or --recipe (see relatum inspect --help)")
        config = replace(find_recipe(recipe).config().data if recipe else DataConfig(), **named)  # type: ignore[arg-type]
        with bar("reading images") as show:
            found = inspect_data(config, workers=workers, limit=0 if counts_only else None, progress=show)
        if json:
            print(json_format.dumps(found.to_dict(), indent=1))
            return
        render(found, Console())
        print(f"plot: {plot_counts(found, plot)}")

    call(run, "relatum inspect", args)


def recipes(args: list[str]) -> None:
    """`relatum recipes [list | show RECIPE | copy RECIPE [TARGET]]`."""
    from relatum.recipes.catalog import copy_recipe, find_recipe, list_recipes

    def list_all() -> None:
        """List all recipes with what each is."""
        known = list_recipes()
        width = max(len(recipe.name) for recipe in known)
        for recipe in known:
            print(f"{recipe.name:<{width}}  {recipe.title}")

    def show(name: RecipeName, /) -> None:
        """Print a recipe file.

        Args:
            name: a name from `relatum recipes`.
        """
        print(find_recipe(name).text, end="")

    def copy(name: RecipeName, target: Annotated[Path, tyro.conf.arg(metavar="[TARGET]")] = Path(), /) -> None:
        """Copy a recipe to edit it; train it with: relatum train FILE.toml.

        Args:
            name: a name from `relatum recipes`.
            target: new file, or a folder for it.
        """
        copied = copy_recipe(name, target)
        print(f"{copied}\nnext: relatum train {shlex.quote(str(copied))}")

    known: dict[str, Callable[..., None]] = {"list": list_all, "show": show, "copy": copy}
    word, rest = (args[0], args[1:]) if args else ("list", [])
    if word in known:
        call(known[word], f"relatum recipes {word}", rest)
    elif word in ("-h", "--help"):
        tyro.extras.subcommand_cli_from_dict(known, prog="relatum recipes", args=["--help"])
    else:
        raise ConfigError(f"unknown word '{word}' after relatum recipes; {suggest(word, known)}")


def train(args: list[str]) -> int:
    """`relatum train RECIPE [--data.root PATH ...]`."""
    from relatum.recipes.catalog import find_recipe

    if args and args[0] in ("-h", "--help"):
        print(
            "usage: relatum train RECIPE [--data.root PATH] [--KEY VALUE ...]\n\n"
            "RECIPE is a name from `relatum recipes` or a TOML file of yours; it comes first.\n"
            "relatum train RECIPE --help lists every setting. Rerunning the same command resumes.\n\n"
            "  relatum train long-tail --data.root photos/ --train.epochs 60"
        )
        return 0
    if not args or args[0].startswith("-"):
        raise ConfigError("relatum train needs a recipe first: relatum train RECIPE ... (relatum recipes lists them)")
    recipe = find_recipe(args[0])
    words = f"{recipe.title}\n\nEvery setting can be changed; the defaults are those of the recipe."
    config = override(recipe.config(), f"relatum train {args[0]}", args[1:], words)
    check(config, "command line")
    out = Path(config.out or f"runs/{recipe.name.replace('/', '-')}-s{config.train.seed}")

    from relatum.processes import is_first
    from relatum.recipes.stages import run

    stopping.follow_parent()
    try:
        done = run(config, recipe.name, out)
    except KeyboardInterrupt:  # where there was nothing to save
        stopping.tell_next(["train", *args])
        raise
    if done.status == "interrupted":
        stopping.tell_next(["train", *args])
        return stopping.exit_code()
    if not is_first():
        return 0
    if config.stages == ("pretrain",):
        print_pretraining(out, done.scores)
        return 0
    if done.scores:
        print_scores(out, {split: s.to_dict() for split, s in done.scores.items()})
    else:
        print("There is no evaluation split (data.val_fraction is 0), so nothing was measured.")
    place = shlex.quote(str(out))
    print(f"run:  {out}\nnext: relatum report {place}\n      relatum predict {place} IMAGE ...")
    return 0


def sweep(args: list[str]) -> int:
    """`relatum sweep RECIPE --over KEY=V1,V2`."""
    from relatum.sweep.verb import sweep as run

    try:
        return run(args)
    except KeyboardInterrupt:  # before the runs or after them
        stopping.tell_next(["sweep", *args])
        raise


def probe(args: list[str]) -> int:
    """`relatum probe RUN`."""
    from relatum.evaluate.probe_verb import probe as run

    return run(args)


def classifier(args: list[str]) -> int:
    """`relatum classifier RUN`."""
    from relatum.classifier.verb import classifier as run

    return run(args)


def evaluate(args: list[str]) -> None:
    """`relatum evaluate RUN`."""

    def run(
        run: Run,
        /,
        shot_rule: ShotRule = "standard",
        adjust_tau: float = 0.0,
        tau_norm: float = 0.0,
        bootstrap: int = 1000,
        mini_batch: Flag = False,
        data_root: MaybePath = None,
        json: Flag = False,
    ) -> None:
        """Score a trained run on its evaluation splits.

        Args:
            run: run directory.
            shot_rule: boundary between many, medium and few.
            adjust_tau: post-hoc logit adjustment with this strength; 0 is off.
            tau_norm: normalise the classifier rows with this power; 0 is off.
            bootstrap: resamples for the confidence interval.
            mini_batch: score the related stream; the answers then depend on which images share a batch.
            data_root: where the data is now, if it has moved.
            json: print all scores as JSON.
        """
        from relatum.recipes.classification import evaluate_run

        config = EvalConfig(shot_rule, adjust_tau, tau_norm, bootstrap, mini_batch)
        check(config, "command line")
        if run.is_file():
            raise ConfigError(f"{run} is a file; relatum evaluate needs the run directory, which names the data.")
        scores = {split: s.to_dict() for split, s in evaluate_run(run, config, str(data_root or "")).items()}
        if not scores:
            raise DataError(f"{run} was trained without a validation or test split: there is nothing to score it on.")
        if json:
            print(json_format.dumps(scores, indent=1))
        else:
            print_scores(run, scores)

    call(run, "relatum evaluate", args)


def predict(args: list[str]) -> None:
    """`relatum predict RUN IMAGE...`."""

    def run(run: Run, images: Images, /, top: int = 3, format: Format = "table", out: MaybePath = None) -> None:
        """Classify image files, or all images in folders.

        Args:
            run: run directory or checkpoint file.
            images: image files and folders.
            top: classes to name for each image.
            format: how to print.
            out: write to this file instead of standard output.
        """
        from relatum.predictions import save_predictions, write_predictions
        from relatum.trained import image_files, load

        if top < 1:
            raise ConfigError(f"--top is {top}; it must be at least 1.")
        paths = image_files(images)
        rows = load(run).predict_files(paths, top)
        if out is not None:
            save_predictions(tracked(rows, len(paths)), format, out)
            print(out)
            return
        # A bar and rows on the same terminal would overwrite each other; a table comes when all is done.
        mixed = format != "table" and sys.stdout.isatty()
        write_predictions(rows if mixed else tracked(rows, len(paths)), format, sys.stdout)

    call(run, "relatum predict", args)


def report(args: list[str]) -> None:
    """`relatum report RUN...`."""

    def run(runs: Runs, /, out: MaybePath = None) -> None:
        """Write one self-contained HTML page about one or several runs.

        Args:
            runs: run directories, or folders that hold them.
            out: the page; default report.html in the run or beside the runs.
        """
        from relatum.report import report as write_report

        print(write_report(list(runs), out))

    call(run, "relatum report", args)


def export(args: list[str]) -> None:
    """`relatum export RUN OUT`."""

    def run(
        run: Run,
        out: Annotated[Path, tyro.conf.arg(metavar="OUT")],
        /,
        formats: Annotated[tuple[ExportFormat, ...], tyro.conf.arg(metavar="FORMAT ...")] = (
            "safetensors",
            "torch-export",
            "onnx",
        ),
    ) -> None:
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
            print(f"{entry.format:<14}{entry.path}{checked}" + (f"\n{'':<14}{entry.note}" if entry.note else ""))

    call(run, "relatum export", args)


def bench(args: list[str]) -> int:
    """`relatum bench [RECIPE]`."""
    from relatum.bench.verb import bench as run

    return run(args)
