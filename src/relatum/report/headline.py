"""What the runs say, in words: only statements that follow from the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relatum.prior import GROUPS
from relatum.report.compare import differences, group_accuracy, group_size, top1
from relatum.report.format import percent, percent_sign, plural
from relatum.report.pretraining import reconstruction_headline
from relatum.report.records import RunRecord
from relatum.report.seeds import SeedGroup, seed_groups

Value = Callable[[RunRecord], float | None]
_TITLES = {"few": "Rare classes", "medium": "Medium-shot classes", "all": "All classes"}


def headline(records: Sequence[RunRecord]) -> tuple[str, list[str]]:
    """Return the title of the page and the sentences under it."""
    groups = seed_groups(records)
    if all(record.only_pretrained for record in records):
        return reconstruction_headline(records)
    if not groups:
        return "No final scores yet", _unfinished(records)
    if len(groups) == 1:
        return _alone(groups[0])
    reasons = differences(records)
    if reasons:
        return f"{len(groups)} runs that do not compare", [f"They differ in: {', '.join(reasons)}. No best is marked."]
    return _compared(groups)


def _unfinished(records: Sequence[RunRecord]) -> list[str]:
    shown = any(record.primary for record in records)
    return [
        "The numbers are those of the last evaluation during training." if shown else "There is nothing to show yet."
    ]


def _alone(group: SeedGroup) -> tuple[str, list[str]]:
    many, few = (group.mean(group_accuracy(name)) for name in ("many", "few"))
    overall = group.mean(top1)
    title = f"All classes: {percent_sign(overall)} right"
    if few is not None:
        title = f"Rare classes: {percent_sign(few)} right"
        title += "" if many is None else f", frequent ones {percent_sign(many)}"
    return title, [_fares(group), *_worst(group), *_support([group])]


def _fares(group: SeedGroup) -> str:
    parts = []
    for name in GROUPS:
        size = group_size(group.records, name)
        value = group.mean(group_accuracy(name))
        classes = "" if size is None else f" ({plural(size, 'class')})"
        parts.append(f"no {name}-shot class" if size == 0 else f"{name}-shot {percent_sign(value)}{classes}")
    return f"{_who(group)}: {percent_sign(group.mean(top1))} of all images right; {', '.join(parts)}."


def _worst(group: SeedGroup) -> list[str]:
    worst = group.records[0].primary.get("worst_class") if len(group.records) == 1 else None
    return [f"The worst class is “{worst['name']}” with {percent_sign(worst['accuracy'])}."] if worst else []


def _compared(groups: Sequence[SeedGroup]) -> tuple[str, list[str]]:
    topic = _topic(groups)
    value = top1 if topic == "all" else group_accuracy(topic)
    first = groups[0]
    best = max(groups, key=lambda group: group.mean(value) or 0.0)
    before, after = percent(first.mean(value)), percent(best.mean(value))
    if before == after:
        title = f"{_TITLES[topic]}: no run is better than {first.name} ({after}\u00a0%)"
        others = max(groups[1:], key=lambda group: group.mean(value) or 0.0)
        return title, [_next_best(others, value, topic), *_support(groups)]
    title = f"{_TITLES[topic]}: {before}\u00a0%\u00a0→ {after}\u00a0% with {best.name}"
    return title, [_against(first, best, topic), *_overlap(first, best), *_support(groups)]


def _topic(groups: Sequence[SeedGroup]) -> str:
    """The rarest group that every run has a number for."""
    for name in ("few", "medium"):
        if all(group.mean(group_accuracy(name)) is not None for group in groups):
            return name
    return "all"


def _next_best(group: SeedGroup, value: Value, topic: str) -> str:
    return f"Next is {_who(group)} with {percent_sign(group.mean(value))} ({_TITLES[topic].lower()})."


def _against(first: SeedGroup, best: SeedGroup, topic: str) -> str:
    sides: list[tuple[str, Value]] = [("all images", top1), *((f"{n}-shot", group_accuracy(n)) for n in GROUPS)]
    parts = []
    for words, value in sides:
        before, after = first.mean(value), best.mean(value)
        if before is not None and after is not None:
            parts.append(f"{words} {percent(before)}\u00a0→\u00a0{percent_sign(after)}")
    return f"{_who(best)} against {_who(first)}, the first in the list: {', '.join(parts)}."


def _overlap(first: SeedGroup, best: SeedGroup) -> list[str]:
    """Only for single runs: over seeds the standard deviations stand in the table."""
    if len(first.records) > 1 or len(best.records) > 1:
        return []
    one, two = (group.records[0].primary.get("interval") for group in (first, best))
    if not one or not two or one["low"] > two["high"] or two["low"] > one["high"]:
        return []
    level = f"{100 * one['level']:g}\u00a0%"
    return [f"Their {level} intervals over all images overlap, so the difference in All may be chance."]


def _support(groups: Sequence[SeedGroup]) -> list[str]:
    """How many images the few-shot number rests on."""
    record = groups[0].records[0]
    found = record.shot_groups()
    rows = record.per_class
    if found is None or len(found.group) != len(rows):
        return []
    support = sum(int(rows[k].get("support") or 0) for k in found.classes("few"))
    return [f"The few-shot number rests on {plural(support, f'{record.split} image')}."] if support else []


def _who(group: SeedGroup) -> str:
    seeds = len(group.records)
    return group.name if seeds == 1 else f"{group.name} (mean of {seeds} seeds)"
