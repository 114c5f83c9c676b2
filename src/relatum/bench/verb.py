"""`relatum bench`: read the words, check everything, measure, tell."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from relatum.arguments import _config_options as config_options
from relatum.arguments import full_names, override
from relatum.config import RunConfig
from relatum.config_files import check
from relatum.errors import ConfigError

USAGE = """usage: relatum bench [RECIPE] [--rounds 5] [--steps 10] [--json FILE] [--KEY VALUE ...]

Measure how fast this machine trains, with the loop of `relatum train`: its input pipeline against
none and against the usual way, every precision and number of threads, evaluation, checkpoints and
start-up. Without data it generates images: 10,000 of 32 pixels, 100 classes.

RECIPE     a name from `relatum recipes` or a TOML file of yours; default a ResNet-32, a small ViT
           and masked pretraining of that ViT, at 128 images a step
--rounds   how often everything is measured, in turn; medians are shown
--steps    training steps timed together
--json     also write everything to this file
--KEY      any setting of `relatum train RECIPE --help`, for example --model.name or --data.root

  relatum bench
  relatum bench long-tail --data.root photos/
  relatum bench --model.name resnet20-cifar --train.threads 1"""
_TAKES_VALUE = ("--rounds", "--steps", "--json")


@dataclass(frozen=True)
class Words:
    """The words of the command line, apart.

    Args:
        recipe: empty for the default subjects.
        rounds: how often everything is measured.
        steps: steps timed together.
        json: file for all results; empty for none.
        rest: overrides of the recipe.
    """

    recipe: str
    rounds: int
    steps: int
    json: str
    rest: tuple[str, ...]


def bench(args: list[str]) -> int:
    """`relatum bench [RECIPE] [--KEY VALUE ...]`."""
    if any(word in ("-h", "--help") for word in args):
        print(USAGE)
        return 0
    words = parse_words(args)
    if words.json and not Path(words.json).resolve().parent.is_dir():
        raise ConfigError(f"--json {words.json}: there is no folder {Path(words.json).parent}; make it first.")
    configs = settings(words)

    from relatum.bench.images import needs_images, with_images, write_images

    with ExitStack() as stack:
        if any(needs_images(config.data) for _, config in configs):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relatum-images-")))
            configs = [(name, with_images(c, folder) if needs_images(c.data) else c) for name, c in configs]
            write_images(folder)
            _say("No data was named: measuring on generated images.")
        _measure_and_tell(configs, words)
    return 0


def parse_words(args: Sequence[str]) -> Words:
    """Take the options of the benchmark out of the words."""
    recipe, behind = ("", args) if not args or args[0].startswith("-") else (args[0], args[1:])
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(behind)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _TAKES_VALUE:
            _refuse_slips(name)
            rest.append(word)
            continue
        given = value if equals else next(words, "")
        if not given or (not equals and given.startswith("--")):
            raise ConfigError(f"{name} needs a value (see relatum bench --help).")
        if name in found:
            raise ConfigError(f"{name} is there twice; give it once.")
        found[name] = given
    rounds, steps = (_count(name, found.get(name, default)) for name, default in (("--rounds", "5"), ("--steps", "10")))
    return Words(recipe, rounds, steps, found.get("--json", ""), tuple(rest))


def _refuse_slips(name: str) -> None:
    """Refuse what looks like an option of ours, and what means something to `relatum train` only."""
    if name in ("--out", "--allow-changes"):
        raise ConfigError(
            f"relatum bench leaves no run behind, so {name} means nothing here; --json keeps the results."
        )
    known = full_names(RunConfig(), [name])[0].replace("_", "-") in config_options(RunConfig())
    meant = difflib.get_close_matches(name, _TAKES_VALUE, n=1, cutoff=0.75)
    if meant and not known:
        raise ConfigError(f"unknown option {name}; did you mean '{meant[0]}'? (see relatum bench --help)")


def settings(words: Words) -> list[tuple[str, RunConfig]]:
    """Return recipes and their settings, checked: that of the user, or the default ones."""
    from relatum.bench.subjects import BATCH, DEFAULTS
    from relatum.recipes.catalog import find_recipe

    names = [words.recipe] if words.recipe else list(DEFAULTS)
    if not words.recipe and "--model.name" in _keys(words.rest):
        names = names[:1]
    found = []
    for name in names:
        config = find_recipe(name).config()
        if not words.recipe:
            config = replace(config, stages=(DEFAULTS[name],), data=replace(config.data, batch_size=BATCH))
            config = replace(config, pretrain=replace(config.pretrain, batch_size=BATCH))
        config = override(config, f"relatum bench {words.recipe}".rstrip(), list(words.rest), find_recipe(name).title)
        check(config, "command line")
        found.append((name, config))
    return found


def _keys(rest: Sequence[str]) -> set[str]:
    given = full_names(RunConfig(), [word.partition("=")[0] for word in rest])
    return {word.replace("_", "-") for word in given if word.startswith("--")}


def _measure_and_tell(configs: Sequence[tuple[str, RunConfig]], words: Words) -> None:
    from relatum.bench.run import measure
    from relatum.bench.subjects import subjects_of
    from relatum.bench.table import bar_table, beside_sentence, speed_table
    from relatum.files import write_atomically
    from relatum.terminal import bar
    from relatum.train.record import surroundings

    console, results = Console(), []
    for subject in (subject for name, config in configs for subject in subjects_of(name, config)):
        with bar(subject.name) as show:
            results.append(measure(subject, words.rounds, words.steps, show))
        console.print(speed_table(results[-1]))
        console.print(beside_sentence(results[-1]), highlight=False, markup=False)
    console.print(bar_table(results))
    if words.json:
        kept = {key: value for key, value in surroundings().items() if key != "git"}
        kept |= {"rounds": words.rounds, "steps": words.steps, "results": [result.to_dict() for result in results]}
        write_atomically(Path(words.json), (json.dumps(kept, indent=1) + "\n").encode())
        print(words.json)


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} is '{text}'; it must be a whole number of at least 1.")
    return int(text)


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
