"""How fast the points of a sweep learn: accuracy and training loss over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from relatum.report.curves import evaluated_split
from relatum.report.format import finite
from relatum.report.records import RunRecord
from relatum.sweep.figures import MUTED, STYLE, new_figure, save
from relatum.sweep.results import mean

# Runs of the report's light mode (style.css); more points than these take a continuous scale.
_PALETTE = ("#4d5761", "#c2571a", "#0072b2", "#00825f", "#a8478a", "#9a6b00", "#3d4fb8", "#8c2f39")
_MOST_LABELS = 20
Curve = dict[float, float]


def draw_convergence(folder: Path, points: Mapping[str, Sequence[RunRecord]]) -> list[Path]:
    """Draw accuracy (solid) and training loss over its first logged value (dotted) against the epoch.

    Losses of different kinds live on different scales, which is why each is divided by where it began.

    Args:
        folder: where convergence.png and convergence.svg go.
        points: the finished runs of each point, one per seed, by its name.
    """
    accuracy = {name: averaged([accuracy_curve(r) for r in records]) for name, records in points.items()}
    loss = {name: averaged([loss_curve(r) for r in records]) for name, records in points.items()}
    if not any([*accuracy.values(), *loss.values()]):
        return []
    with mpl.rc_context(STYLE):
        figure = new_figure(7.2 + 0.08 * max(map(len, points)), 4.6)  # the names stand beside the curves
        axes = figure.subplots()
        second = axes.twinx()
        for name, colour in zip(points, _colours(len(points)), strict=True):
            _plot(axes, accuracy[name], colour, "-", 100.0)
            _plot(second, loss[name], colour, ":", 1.0)
            axes.plot([], [], color=colour, label=name)
        _label(axes, second, len(points))
    return save(figure, folder / "convergence")


def accuracy_curve(record: RunRecord) -> Curve:
    """Return top-1 by epoch, of the split that was evaluated during training."""
    return _curve(record.evaluations(evaluated_split(record)), lambda row: finite(row.get("top1")))


def loss_curve(record: RunRecord) -> Curve:
    """Return the training loss by epoch, divided by its first logged value."""
    curve = _curve(record.training(), lambda row: finite(row.get("loss")))
    first = next(iter(curve.values()), 0.0)
    return {epoch: loss / first for epoch, loss in curve.items()} if first else {}


def averaged(curves: Sequence[Curve]) -> Curve:
    """Return the mean over seeds at the epochs that all of them have."""
    if not curves:
        return {}
    shared = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)]
    found = {epoch: mean([curve[epoch] for curve in curves]) for epoch in shared}
    return {epoch: value for epoch, value in found.items() if value is not None}


def _curve(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float | None]) -> Curve:
    return {float(row["epoch"]): found for row in rows if (found := value(row)) is not None}


def _plot(axes: Axes, curve: Curve, colour: Any, dashes: str, factor: float) -> None:
    # A single value makes no line, so it gets a mark.
    mark = "o" if len(curve) == 1 else ""
    axes.plot(list(curve), factor * np.array(list(curve.values())), color=colour, linestyle=dashes, marker=mark)


def _colours(number: int) -> list[Any]:
    if number <= len(_PALETTE):
        return list(_PALETTE[:number])
    return list(mpl.colormaps["viridis"](np.linspace(0.0, 0.92, number)))


def _label(axes: Axes, second: Axes, points: int) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy (%), solid")
    second.set_ylabel("training loss / its first value, dotted")
    second.set_ylim(bottom=0)
    axes.grid(axis="y")
    handles, labels = axes.get_legend_handles_labels()
    if points > _MOST_LABELS:
        handles, labels = handles[:_MOST_LABELS], [*labels[: _MOST_LABELS - 1], f"and {points - _MOST_LABELS + 1} more"]
    kinds = [Line2D([], [], color=MUTED), Line2D([], [], color=MUTED, linestyle=":")]
    axes.figure.legend(
        [*handles, *kinds], [*labels, "accuracy", "loss"], loc="outside right upper", frameon=False, fontsize=9
    )
