"""Figures about the result: groups, classes over frequency, reliability, counts, confusion. Each returns inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relatum.prior import GROUPS
from relatum.report.format import NOT_AVAILABLE, finite, percent, percent_sign, plural
from relatum.report.records import RunRecord
from relatum.report.svg import GRID, GROUP_COLORS, INK, MUTED, draw_svg, marker, percent_axis, series_color

LARGEST_HEAT_MAP = 30
_MOST_POINTS = 120
_HALF, _THIRD = (5.1, 3.3), (4.0, 3.3)


def group_bars(records: Sequence[RunRecord]) -> str:
    """Draw accuracy of all, many-, medium- and few-shot classes as bars, one per run; an empty group says n/a."""
    values = np.array([_group_values(record) for record in records])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.84 / len(records)
        for i, record in enumerate(records):
            place = np.arange(4) + (i - (len(records) - 1) / 2) * width
            axes.bar(place, np.nan_to_num(values[i]), width * 0.92, color=series_color(i))
            _bar_labels(axes, place, values[i], _whisker(axes, place[0], record), len(records))
        axes.set_xticks(range(4), _group_labels(records), fontsize=11)
        axes.tick_params(axis="x", length=0)
        percent_axis(axes, high=108)
        axes.set_yticks(range(0, 101, 20))

    parts = [f"{r.name}: " + ", ".join(map(_label_percent, v)) for r, v in zip(records, values, strict=True)]
    return draw_svg("groups", "Accuracy of all, many, medium and few classes. " + "; ".join(parts), _HALF, draw)


def _label_percent(value: float) -> str:
    return percent_sign(value / 100)


def _group_values(record: RunRecord) -> list[float]:
    scores = record.primary
    found = [scores.get("top1"), *(scores.get("groups", {}).get(name, {}).get("accuracy") for name in GROUPS)]
    return [100 * x if (x := finite(value)) is not None else np.nan for value in found]


def _group_labels(records: Sequence[RunRecord]) -> list[str]:
    labels = ["All"]
    for name in GROUPS:
        sizes = {r.primary.get("groups", {}).get(name, {}).get("classes") for r in records if r.primary}
        size = sizes.pop() if len(sizes) == 1 else None
        labels.append(name.capitalize() + ("" if size is None else f"\n{plural(size, 'class')}"))
    return labels


def _whisker(axes: Axes, place: float, record: RunRecord) -> float:
    """Draw the interval of All and return its upper end in percent, or 0 without one."""
    interval = record.primary.get("interval")
    if not interval:
        return 0.0
    axes.plot([place, place], [100 * interval["low"], 100 * interval["high"]], color=INK, linewidth=1.2)
    return float(100 * interval["high"])


def _bar_labels(axes: Axes, place: npt.NDArray[Any], values: npt.NDArray[Any], upper: float, runs: int) -> None:
    for k, (x, value) in enumerate(zip(place, values, strict=True)):
        if np.isnan(value):
            axes.text(x, 1.5, NOT_AVAILABLE, ha="center", fontsize=8, color=MUTED, rotation=90 if runs > 2 else 0)
        elif runs <= 4:
            top = max(value, upper) if k == 0 else value
            axes.text(x, top + 1.0, f"{value:.0f}", ha="center", fontsize=9)


def class_accuracy(records: Sequence[RunRecord]) -> str:
    """Draw accuracy per class over the classes sorted by training images: points, and a smoothed line per run."""
    scored = [(i, record) for i, record in enumerate(records) if record.per_class]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, record in scored:
            _, values = _by_frequency(record)
            x, points = _thinned(values)
            axes.plot(x, points, marker(i), color=series_color(i), markersize=4.5, alpha=0.75, markeredgewidth=0)
            axes.plot(np.arange(len(values)), _smooth(values), color=series_color(i))
        _frequency_axis(axes, [record for _, record in scored])
        percent_axis(axes, low=-3, high=103)

    names = ", ".join(record.name for _, record in scored)
    label = f"Accuracy of each class, from the most to the least frequent class, for {names}"
    return draw_svg("classes", label, _HALF, draw)


def points_are_means(records: Sequence[RunRecord]) -> bool:
    """Whether `class_accuracy` shows means of neighbouring classes because there are too many for points."""
    return any(len(record.per_class) > _MOST_POINTS for record in records)


def _by_frequency(record: RunRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    rows = record.per_class
    counts = np.array([int(row["train_count"]) for row in rows])
    values = np.array([100 * x if (x := finite(row["accuracy"])) is not None else np.nan for row in rows])
    order = np.argsort(-counts, kind="stable")
    return counts[order], values[order]


def _thinned(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if len(values) <= _MOST_POINTS:
        return np.arange(len(values), dtype=float), values
    spans = np.array_split(np.arange(len(values)), _MOST_POINTS)
    return np.array([span.mean() for span in spans]), np.array([_mean(values[span]) for span in spans])


def _mean(values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else np.nan


def _smooth(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Gaussian mean over neighbouring classes; classes without test images have no weight."""
    rank = np.arange(len(values), dtype=float)
    known = ~np.isnan(values)
    width = max(len(values) / 16, 0.5)
    weight = np.exp(-0.5 * ((rank[:, None] - rank[known]) / width) ** 2)
    total = weight.sum(axis=1)
    return np.divide(weight @ values[known], total, out=np.full(len(values), np.nan), where=total > 1e-12)


def _frequency_axis(axes: Axes, records: Sequence[RunRecord]) -> None:
    orders = [_by_frequency(record)[0] for record in records]
    size = max((len(counts) for counts in orders), default=1)
    ticks = np.unique(np.linspace(0, size - 1, 6).round().astype(int))
    if all(np.array_equal(counts, orders[0]) for counts in orders):
        axes.set_xticks(ticks, [f"{orders[0][t]:,}" for t in ticks])
        axes.set_xlabel("training images of the class")
    else:
        axes.set_xticks(ticks, [str(t + 1) for t in ticks])
        axes.set_xlabel("class, from most to least training images")


def reliability(record: RunRecord, index: int) -> str:
    """Draw accuracy over confidence in bins, above a histogram of the confidences."""
    bins = record.primary["reliability"]
    edges = np.array(bins["edges"], dtype=float) * 100
    accuracy = np.array([np.nan if finite(x) is None else 100 * x for x in bins["accuracy"]])
    confidence = np.array([np.nan if finite(x) is None else 100 * x for x in bins["confidence"]])
    count = np.array(bins["count"], dtype=float)

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        upper.stairs(np.nan_to_num(accuracy), edges, fill=True, color=series_color(index), alpha=0.35)
        upper.plot([0, 100], [0, 100], color=MUTED, linewidth=1.2, linestyle="--")
        upper.plot(confidence, accuracy, marker(index) + "-", color=series_color(index), markersize=4.5)
        percent_axis(upper, high=102)
        upper.set_yticks([0, 25, 50, 75, 100])
        upper.set_ylabel("accuracy")
        lower.stairs(count, edges, fill=True, color=series_color(index), alpha=0.7)
        lower.set_ylabel("images")
        lower.set_yticks([0, int(count.max())])
        lower.set_xlim(0, 100)
        lower.set_xticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        lower.set_xlabel("confidence")
        lower.grid(visible=False)

    error = percent(record.primary.get("ece"))
    return draw_svg(f"calibration{index}", f"Reliability diagram of {record.name}, ECE {error} percent", _THIRD, draw)


def class_counts(record: RunRecord, key: str = "counts") -> str:
    """Draw training images per class on a logarithmic scale, coloured by shot group."""
    counts = np.array(record.counts)
    order = np.argsort(-counts, kind="stable")
    found = record.shot_groups()
    member = found.group[order] if found else np.full(len(counts), -1)
    half = 0.4 if len(counts) <= 60 else 0.5
    edges = np.stack([np.arange(len(counts)) - half, np.arange(len(counts)) + half], axis=1).ravel()

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_yscale("log")
        for number, color in zip((0, 1, 2, -1), (*GROUP_COLORS.values(), MUTED), strict=True):
            shown = np.where((member == number) & (counts[order] > 0), counts[order].astype(float), np.nan)
            spaced = np.full(len(edges) - 1, np.nan)  # every second span is the gap between two bars
            spaced[::2] = shown
            if np.isfinite(shown).any():
                axes.stairs(spaced, edges, baseline=0.7, fill=True, color=color)
        axes.set_ylim(0.7, counts.max() * 1.3)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
        axes.minorticks_off()
        axes.set_xticks([])
        axes.set_xlabel("classes, from most to least training images")
        axes.grid(visible=False, axis="x")

    label = f"Training images per class: {counts.max():,} for the largest, {counts.min():,} for the smallest class"
    return draw_svg(key, label, _HALF, draw)


def confusion_map(record: RunRecord) -> str:
    """Draw the confusion matrix, classes sorted by training images; opacity is the square root of the row's share."""
    order = np.argsort(-np.array([int(row["train_count"]) for row in record.per_class]), kind="stable")
    matrix = np.array(record.primary["confusion"], dtype=float)[np.ix_(order, order)]
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = [_short(record.per_class[k]["name"]) for k in order]
    # One mid-tone with opacity reads on light and on dark ground; the pixels cannot follow a CSS variable.
    pixels = np.concatenate([np.broadcast_to([0.20, 0.56, 0.86], (*share.shape, 3)), np.sqrt(share)[..., None]], axis=2)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.imshow(pixels, interpolation="none")
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.grid(visible=False)
        axes.spines[:].set(visible=True, color=GRID)
        axes.tick_params(length=0)

    return draw_svg("confusion", f"Confusion matrix of {record.name}, {len(names)} classes", (6.0, 5.6), draw)


def _short(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
