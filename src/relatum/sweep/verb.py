"""`relatum sweep`: read the words, check everything, run, tell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from relatum import stopping
from relatum.arguments import full_names, override
from relatum.config_files import check
from relatum.errors import ConfigError
from relatum.sweep.grid import OWN, parse_points, parse_seeds
from relatum.sweep.plan import Base, Job, plan_jobs
from relatum.sweep.record import FILE, Sweep, joined, locked, read_sweep
from relatum.sweep.runner import Outcome, Runner
from relatum.sweep.state import is_finished

EXIT_FAILED = 1
USAGE = """usage: relatum sweep RECIPE --over KEY=V1,V2,... [--over KEY2=...] [--seeds 0-2]
                     [--jobs 1] [--out DIR] [--dry-run] [--KEY VALUE ...]
       relatum sweep DIR

Run a grid of settings with several seeds; rerunning the same command resumes.

RECIPE     a name from `relatum recipes` or a TOML file of yours; it comes first
DIR        an existing sweep: show its table, write its figures and report anew
--over     a setting and its values; several make a grid
--seeds    a range (0-2) or a list (0,3,5); default 0
--jobs     runs at a time; default 1
--out      directory of the sweep; default runs/sweep-RECIPE
--dry-run  show what would be run, and stop
--KEY      any setting of `relatum train RECIPE --help`, the same for all runs

  relatum sweep shapes-lt --over objective.name=cross-entropy,balanced-softmax --seeds 0-2"""
_TAKES_VALUE = ("--over", "--seeds", "--jobs", "--out")


@dataclass
class Words:
    """The words of the command line, apart.

    Args:
        over: what stood behind each --over.
        seeds: text of --seeds.
        jobs: runs at a time.
        out: directory of the sweep; empty for the default.
        dry_run: only show what would be run.
        rest: overrides for `relatum train`.
    """

    over: list[str]
    seeds: str
    jobs: int
    out: str
    dry_run: bool
    rest: list[str]


def sweep(args: list[str]) -> int:
    """`relatum sweep RECIPE --over KEY=V1,V2 ...` and `relatum sweep DIR`."""
    if any(word in ("-h", "--help") for word in args):
        print(USAGE)
        return 0
    if not args or args[0].startswith("-"):
        raise ConfigError("relatum sweep needs a recipe first: relatum sweep RECIPE --over KEY=V1,V2 (see --help)")
    if (Path(args[0]) / FILE).is_file():
        return _show_existing(Path(args[0]), args[1:])
    words = parse_words(args[1:])
    base, jobs = prepare(args[0], words)
    command = shlex.join(["relatum", "sweep", *args])
    if words.dry_run:
        return _dry_run(joined(base, jobs, command), jobs)
    with locked(base.folder) as lock:
        record = joined(base, jobs, command)
        record.write()
        outcome = _run(record, jobs, words.jobs, lock)
        if outcome.interrupted:
            _say(f"Interrupted. The same command continues; relatum sweep {base.folder} shows what is there.")
            stopping.tell_next(["sweep", *args])
            return stopping.exit_code()
        _tell(record, outcome, {job.name for job in jobs})
    _explain(base.folder, outcome)
    return EXIT_FAILED if outcome.failed else 0


def parse_words(args: Sequence[str]) -> Words:
    """Take the options of the sweep out of the words behind the recipe."""
    found: dict[str, list[str]] = {name: [] for name in _TAKES_VALUE}
    rest: list[str] = []
    dry_run = False
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--dry-run":
            dry_run = True
        elif name in found:
            given = value if equals else next(words, None)
            if given is None or (not equals and given.startswith("--")):
                raise ConfigError(f"{name} needs a value (see relatum sweep --help).")
            found[name].append(given)
        else:
            rest.append(word)
    for name in ("--seeds", "--jobs", "--out"):
        if len(found[name]) > 1:
            raise ConfigError(f"{name} is there twice; give it once.")
    if not found["--over"] and not found["--seeds"]:
        raise ConfigError("nothing to sweep: give --over KEY=V1,V2 for a grid, or --seeds 0-2 for several seeds.")
    seeds, jobs, out = (
        (found[name] or [default])[0] for name, default in (("--seeds", "0"), ("--jobs", "1"), ("--out", ""))
    )
    return Words(found["--over"], seeds, _jobs(jobs), out, dry_run, rest)


def prepare(recipe_name: str, words: Words) -> tuple[Base, list[Job]]:
    """Check every word and build the settings of every run; nothing is written or started."""
    from relatum.recipes.catalog import find_recipe

    recipe = find_recipe(recipe_name)
    rest = full_names(recipe.config(), words.rest)
    overridden = _overridden(rest)
    config = override(recipe.config(), f"relatum train {recipe_name}", rest, recipe.title)
    check(config, "command line")
    if "finetune" not in config.stages:
        raise ConfigError("a sweep compares fine-tuned runs: --stages pretrain leaves nothing to compare.")
    points, seeds = parse_points(words.over, config, overridden), parse_seeds(words.seeds)
    folder = Path(words.out or f"runs/sweep-{recipe.name.replace('/', '-')}")
    base = Base(recipe_name, config, tuple(rest), folder)
    return base, plan_jobs(base, points, seeds)


def pending(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are not finished; a first stage counts only where an unfinished run needs it."""
    open_jobs = [job for job in jobs if not is_finished(job)]
    needed = {job.needs for job in open_jobs}
    return [job for job in open_jobs if job.point is not None or job.name in needed]


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--jobs is '{text}'; it must be a whole number of at least 1.")
    return int(text)


def _overridden(words: Sequence[str]) -> list[str]:
    """Return the keys that the overrides set; those that the sweep sets itself are refused."""
    keys = []
    for word in words:
        if not word.startswith("--"):
            continue
        room, dot, last = word[2:].partition("=")[0].replace("-", "_").rpartition(".")
        keys += [f"{room}{dot}{last}", f"{room}{dot}{last.removeprefix('no_')}"]
    if "train.seed" in keys:
        raise ConfigError(f"--train.seed cannot be given here: {OWN['train.seed']}.")
    return keys


def _run(record: Sweep, jobs: Sequence[Job], at_once: int, lock: int) -> Outcome:
    todo = pending(jobs)
    runs = sum(job.point is not None for job in jobs)
    done = runs - sum(job.point is not None for job in todo)
    stages = len(todo) - (runs - done)
    words = f"{runs} run{'' if runs == 1 else 's'}" + (f", {done} of them finished already" if done else "")
    words += f"; {stages} shared pretraining{'s' if stages > 1 else ''} first" if stages else ""
    _say(f"{words}. Logs: {record.folder / 'logs'}" if todo else f"{words}.")
    return Runner(record.folder, todo, at_once, _say, keep_open=(lock,)).run()


def _show_existing(folder: Path, rest: Sequence[str]) -> int:
    if rest:
        raise ConfigError(
            f"{folder} is a sweep: relatum sweep {folder} shows it and takes no options; "
            f"to run more, name its recipe: relatum sweep {read_sweep(folder).recipe} --out {folder} --over KEY=V1,V2."
        )
    _tell(read_sweep(folder), Outcome(), set())
    return 0


def _dry_run(record: Sweep, jobs: Sequence[Job]) -> int:
    todo = {job.name for job in pending(jobs)}
    for job in jobs:
        mark = "" if job.name in todo else "  # finished" if is_finished(job) else "  # not needed any more"
        print(shlex.join(["relatum", *job.words]) + mark)
    print(f"{len(todo)} of {len(jobs)} to run, in {record.folder}")
    return 0


def _tell(record: Sweep, outcome: Outcome, tried: set[str]) -> None:
    """Write rows, tables, figures and the report, and print the table; what was not tried now keeps its failure."""
    from relatum.sweep.results import failed_before
    from relatum.sweep.tell import tell

    tell(record, (failed_before(record.folder) - tried) | set(outcome.failed), Console())


def _explain(folder: Path, outcome: Outcome) -> None:
    for name, lines in outcome.failed.items():
        _say(f"\n{name} failed (log: {folder / 'logs' / f'{name}.txt'}):")
        for line in lines:
            _say(f"  {line}")
    if outcome.failed:
        _say(f"\n{len(outcome.failed)} of the runs failed; the same command tries them again.")


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
