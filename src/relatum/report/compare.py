"""Runs side by side: the columns of the comparison, the best of each, seeds gathered, settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from relatum.prior import GROUPS
from relatum.report.format import DASH, NOT_AVAILABLE, decimal, finite, percent, plural, setting, whole
from relatum.report.records import RunRecord
from relatum.report.seeds import SeedGroup, flatten, mean_record, repeated


@dataclass(frozen=True)
class Column:
    """One quantity of the comparison: how to find it, how to write it, and which end is good."""

    label: str
    hint: str
    value: Callable[[RunRecord], float | None]
    write: Callable[[Any], str]
    better: Literal["high", "low", ""] = "high"
    note: Callable[[RunRecord], str] = lambda record: ""


@dataclass(frozen=True)
class Cell:
    """A written value, a small note under it, and whether it is the best of its column."""

    text: str
    note: str = ""
    best: bool = False


def top1(record: RunRecord) -> float | None:
    """Accuracy over all evaluated images."""
    return finite(record.primary.get("top1"))


def group_accuracy(name: str) -> Callable[[RunRecord], float | None]:
    """Return the function that reads the accuracy of shot group `name`."""
    return lambda record: finite(record.primary.get("groups", {}).get(name, {}).get("accuracy"))


def group_size(records: Sequence[RunRecord], name: str) -> int | None:
    """Return the number of classes in shot group `name` if all runs agree on it."""
    sizes = {record.primary.get("groups", {}).get(name, {}).get("classes") for record in records if record.primary}
    return sizes.pop() if len(sizes) == 1 else None


def columns(records: Sequence[RunRecord]) -> list[Column]:
    """Return the columns of the comparison, with the group sizes where all runs agree."""
    return [
        Column("All", "top-1", top1, percent),
        *(_group_column(records, name) for name in GROUPS),
        Column("Balanced", "accuracy", _score("balanced_accuracy"), percent),
        Column("Macro-F1", "", _score("macro_f1"), percent),
        Column("Worst class", "", _worst, percent, note=_worst_name),
        Column("ECE", "", _score("ece"), percent, "low"),
        Column("MCE", "", _score("mce"), percent, "low"),
        Column("NLL", "", _score("nll"), decimal, "low"),
        Column("Interval", "of All", lambda record: None, percent, ""),
        Column("Parameters", "", _fact("parameters"), whole, "low"),
        Column("Seconds", "training", _fact("seconds"), whole, "low"),
        Column("Images/s", "training", _fact("images_per_second"), whole),
    ]


def rows(records: Sequence[RunRecord], shown: Sequence[Column]) -> list[list[Cell]]:
    """Write the cells of every run; the best of a column is marked only where the runs compare."""
    table = [[_cell(column, record) for column in shown] for record in records]
    judged = [i for i, record in enumerate(records) if record.has_scores]
    # With several seeds the best mean is marked instead: the luckiest single run says little.
    if len(judged) < 2 or differences(records) or repeated(records):
        return table
    for c, column in enumerate(shown):
        for i in _best(column, [records[i] for i in judged]):
            cell = table[judged[i]][c]
            table[judged[i]][c] = Cell(cell.text, cell.note, best=True)
    return table


def seed_rows(groups: Sequence[SeedGroup], shown: Sequence[Column]) -> list[list[Cell]]:
    """Write mean ± sample standard deviation over the seeds of each group; the best mean of a column is marked."""
    means = [mean_record(group) for group in groups]
    compared = len(groups) > 1 and not differences(means)
    best = [_best(column, means) if compared else [] for column in shown]
    return [
        [Cell(_spread(column, group), best=i in best[c]) for c, column in enumerate(shown)]
        for i, group in enumerate(groups)
    ]


def differences(records: Sequence[RunRecord]) -> list[str]:
    """Say why the finished runs do not compare: split, images, classes or shot rule. Empty if they do."""
    judged = [record for record in records if record.has_scores]
    aspects: dict[str, set[Any]] = {
        "split": {record.split for record in judged},
        "number of images": {record.primary.get("samples") for record in judged},
        "classes": {tuple(row["name"] for row in record.per_class) for record in judged},
        "shot rule": {record.rule for record in judged},
    }
    return [name for name, values in aspects.items() if len(values) > 1]


def setting_differences(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ, with the value of each run; the output directory always does and is left out."""
    flat = [flatten(record.config) for record in records]
    keys = dict.fromkeys(key for settings in flat for key in settings if key != "out")
    written = [(key, [setting(settings.get(key)) for settings in flat]) for key in keys]
    return [(key, values) for key, values in written if len(set(values)) > 1]


def _group_column(records: Sequence[RunRecord], name: str) -> Column:
    size = group_size(records, name)
    hint = "" if size is None else plural(size, "class")
    return Column(name.capitalize(), hint, group_accuracy(name), percent)


def _score(key: str) -> Callable[[RunRecord], float | None]:
    return lambda record: finite(record.primary.get(key))


def _fact(key: str) -> Callable[[RunRecord], float | None]:
    return lambda record: finite(record.manifest.get(key))


def _worst(record: RunRecord) -> float | None:
    return finite((record.primary.get("worst_class") or {}).get("accuracy"))


def _worst_name(record: RunRecord) -> str:
    return str((record.primary.get("worst_class") or {}).get("name", ""))


def _cell(column: Column, record: RunRecord) -> Cell:
    if column.label != "Interval":
        return Cell(column.write(column.value(record)), column.note(record))
    interval = record.primary.get("interval")
    if not interval:
        return Cell(NOT_AVAILABLE)
    return Cell(f"{percent(interval['low'])}{DASH}{percent(interval['high'])}", f"{100 * interval['level']:g} %")


def _spread(column: Column, group: SeedGroup) -> str:
    known = [x for record in group.records if (x := column.value(record)) is not None]
    if len(known) < len(group.records):
        return DASH
    return f"{column.write(fmean(known))} ± {column.write(stdev(known))}"


def _best(column: Column, records: Sequence[RunRecord]) -> list[int]:
    """Positions whose written value equals the best one; none where all are equal, so that rounding decides nothing."""
    values = [column.value(record) for record in records]
    known = [value for value in values if value is not None]
    if not column.better or not known:
        return []
    best = column.write(max(known) if column.better == "high" else min(known))
    found = [i for i, value in enumerate(values) if value is not None and column.write(value) == best]
    return found if len(found) < len(records) else []
