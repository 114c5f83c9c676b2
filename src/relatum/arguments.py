"""Read a verb's arguments: one sentence about the first mistake, then tyro does the rest.

Tyro builds values and help pages from signatures. Its error boxes are long and do not always name the nearest option,
so the words of the command line are held against the declaration first.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

import tyro

from relatum.errors import ConfigError, suggest

T = TypeVar("T")
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Declared:
    """What a verb takes.

    Args:
        places: names of the positional arguments that must be there, in order.
        limit: most positional arguments; None if the last takes any number.
        options: type of each option by its name, for example {"--data.root": str}; flags are bool.
    """

    places: tuple[str, ...]
    limit: int | None
    options: Mapping[str, Any]


def call(function: Callable[..., T], prog: str, args: list[str]) -> T:
    """Parse `args` by the signature of `function` (positional-only parameters are positional) and call it."""
    args = _checked(args, _declared_by_signature(function), prog)
    return tyro.cli(function, prog=prog, args=args, config=(tyro.conf.FlagCreatePairsOff,))


def override(config: T, prog: str, args: list[str], description: str) -> T:
    """Return the config dataclass with the values that `args` set, such as `--train.epochs 3`.

    The part of a name before its dot may be left out where only one setting ends so: `--bad-images quarantine`.
    """
    args = _checked(full_names(config, args), Declared((), 0, _config_options(config)), prog)
    return tyro.cli(type(config), prog=prog, args=args, default=config, description=description)


def full_names(config: Any, args: list[str]) -> list[str]:
    """Return `args` with `--bad-images` as `--data.bad-images`, where no other setting of `config` ends so."""
    options = _config_options(config)
    return [_full_name(word, options) for word in args]


def _full_name(word: str, options: Mapping[str, Any]) -> str:
    given, equals, value = word.partition("=")
    if not given.startswith("--") or given.replace("_", "-") in options:
        return word
    same = _same_ending(given.replace("_", "-"), options)
    return f"{same[0]}{equals}{value}" if len(same) == 1 and "." not in given else word


def _declared_by_signature(function: Callable[..., Any]) -> Declared:
    hints = typing.get_type_hints(function, include_extras=True)
    places: list[str] = []
    limit: int | None = 0
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint, metavar = _bare(hints[name])
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            options[f"--{name.replace('_', '-')}"] = hint
            continue
        limit = None if limit is None or get_origin(hint) is tuple else limit + 1
        if parameter.default is inspect.Parameter.empty:
            places.append(metavar or name.upper())
    return Declared(tuple(places), limit, options)


def _bare(hint: Any) -> tuple[Any, str | None]:
    """Take the type and tyro's metavar out of `Annotated[type, tyro.conf.arg(metavar=...)]`."""
    if get_origin(hint) is not typing.Annotated:
        return hint, None
    kind, *marks = get_args(hint)
    return kind, next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)


def _config_options(config: Any, prefix: str = "") -> dict[str, Any]:
    hints = typing.get_type_hints(type(config))
    options: dict[str, Any] = {}
    for f in fields(config):
        word = f.name.replace("_", "-")
        if is_dataclass(getattr(config, f.name)):
            options |= _config_options(getattr(config, f.name), f"{prefix}{word}.")
            continue
        options[f"--{prefix}{word}"] = hints[f.name]
        if hints[f.name] is bool:
            options[f"--{prefix}no-{word}"] = bool
    return options


def _checked(args: list[str], declared: Declared, prog: str) -> list[str]:
    """Return `args`; a ConfigError names the first word that does not fit. A wish for help wins over all mistakes."""
    if any(word in ("-h", "--help") for word in args):
        return ["--help"]
    words = iter(args)
    placed: list[str] = []
    waiting: str | None = next(words, None)
    while waiting is not None:
        if not _is_option(waiting):
            placed.append(waiting)
            waiting = next(words, None)
            continue
        waiting = _check_option(waiting, words, declared.options, prog)
    if len(placed) < len(declared.places):
        missing = declared.places[len(placed)]
        raise ConfigError(f"{prog} needs {missing}; usage: {prog} {' '.join(declared.places)} (see {prog} --help)")
    if declared.limit is not None and len(placed) > declared.limit:
        stray = placed[declared.limit]
        raise ConfigError(f"'{stray}' is one word too many; options begin with -- (see {prog} --help).")
    return args


def _check_option(word: str, rest: Iterator[str], options: Mapping[str, Any], prog: str) -> str | None:
    """Check one option with its values, taken from `rest`; return the first word behind them."""
    given, equals, value = word.partition("=")
    name = given.replace("_", "-")
    if name not in options:
        raise ConfigError(f"unknown option {given}{_nearest(name, options)} (see {prog} --help)")
    hint, following = options[name], next(rest, None)
    many = get_origin(hint) is tuple
    if equals and hint is not bool:
        _check_value(name, value, get_args(hint)[0] if many else hint)
        return following
    if equals:
        raise ConfigError(f"{name} is a switch and takes no value.")
    if hint is bool:
        return following
    if many:
        while following is not None and not _is_option(following):
            _check_value(name, following, get_args(hint)[0])
            following = next(rest, None)
        return following
    if following is None or _is_option(following):
        raise ConfigError(f"{name} needs a value (see {prog} --help).")
    _check_value(name, following, hint)
    return next(rest, None)


def _check_value(name: str, value: str, hint: Any) -> None:
    if get_origin(hint) is Literal:
        known = [str(choice) for choice in get_args(hint)]
        if value not in known:
            raise ConfigError(f"{name} is '{value}'; {suggest(value, known)}")
    elif hint in _NUMBERS:
        try:
            hint(value)
        except ValueError as error:
            raise ConfigError(f"{name} must be {_NUMBERS[hint]}, not '{value}'.") from error


def _is_option(word: str) -> bool:
    """Whether a word names an option: it begins with a dash and is no negative number."""
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _nearest(name: str, options: Mapping[str, Any]) -> str:
    """Name the options with the same last part (`--epochs` for `--train.epochs`), else the one spelt most alike."""
    same = _same_ending(name, options)
    if same:
        return f"; did you mean {' or '.join(same)}?"
    words = suggest(name, options)
    return f"; {words}" if words else ""


def _same_ending(name: str, options: Mapping[str, Any]) -> list[str]:
    last = name.lstrip("-").rpartition(".")[2]
    return [option for option in options if option.lstrip("-").rpartition(".")[2] == last]
