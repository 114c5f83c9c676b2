"""Figures of a sweep: scores against a swept number, and convergence; each as PNG and SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relatum.errors import CheckpointError
from relatum.report.format import setting
from relatum.sweep.grid import is_numeric
from relatum.sweep.results import Summary

# The colours of the report's light mode (style.css), which CSS variables cannot bring to a PNG.
INK, MUTED, GRID = "#1b1f24", "#59636e", "#dfe3e8"
COLOURS = {"All": INK, "Many": "#0072b2", "Medium": "#7a8591", "Few": "#c2571a", "ECE": "#a8478a"}
MARKERS = {"All": "o", "Many": "s", "Medium": "^", "Few": "D", "ECE": "X"}
FEWEST_VALUES = 3
_COLUMNS = 3
_TITLE_WIDTH = 44  # letters above a panel
_LOG_RATIO = 50.0
STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "grid.color": GRID,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "relatum",
}


def draw_values(folder: Path, keys: Sequence[str], summaries: Sequence[Summary]) -> list[Path]:
    """Draw All, Many, Medium, Few and ECE against every swept number with at least three values.

    Where other settings are swept too, each combination of theirs has its own panel.
    """
    written: list[Path] = []
    done = [summary for summary in summaries if summary.seeds]
    for key in keys:
        if is_numeric(key) and len({summary.values[key] for summary in done}) >= FEWEST_VALUES:
            panels = _panels(done, key, [other for other in keys if other != key])
            written += save(_draw_panels(key, panels), folder / key)
    return written


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG and return both paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    try:
        with mpl.rc_context(STYLE):
            for path in paths:
                unfinished = path.with_name(f".{path.name}.part")
                dated = {"Date": None} if path.suffix == ".svg" else None  # the same results give the same file
                figure.savefig(unfinished, format=path.suffix[1:], dpi=150, metadata=dated)
                unfinished.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {stem}: {error.strerror}. Check space and permissions.") from error
    return paths


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that draws itself without a screen."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _panels(summaries: Sequence[Summary], key: str, others: Sequence[str]) -> dict[str, list[Summary]]:
    """Gather the points by the values of all other keys; a panel needs at least two points."""
    varying = [other for other in others if len({setting(_plain(s.values[other])) for s in summaries}) > 1]
    panels: dict[str, list[Summary]] = {}
    for summary in summaries:
        title = ", ".join(f"{other} {setting(_plain(summary.values[other]))}" for other in varying)
        panels.setdefault(title, []).append(summary)
    ordered = {title: sorted(group, key=lambda s: float(s.values[key])) for title, group in panels.items()}
    return {title: group for title, group in ordered.items() if len(group) > 1}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _draw_panels(key: str, panels: Mapping[str, Sequence[Summary]]) -> Figure:
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // _COLUMNS)
    with mpl.rc_context(STYLE):
        figure = new_figure(1.2 + 4.6 * columns, 0.7 + 3.3 * rows)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        seconds = []
        for place, (axes, (title, group)) in enumerate(zip(grid, panels.items(), strict=False)):
            axes.set_title(textwrap.fill(title, _TITLE_WIDTH))
            seconds.append(_draw_panel(axes, key, group))
            _name_outer_axes(axes, seconds[-1], place, columns, len(panels))
        for axes in grid[len(panels) :]:
            axes.remove()
        _share_top(seconds)
        _legend(figure, grid[0], seconds[0])
    return figure


def _draw_panel(axes: Axes, key: str, group: Sequence[Summary]) -> Axes:
    """Draw one panel and return its second axis, that of ECE."""
    second = axes.twinx()
    for metric in COLOURS:
        _line(second if metric == "ECE" else axes, metric, key, group)
    axes.set_xlabel(key)
    second.tick_params(axis="y", labelcolor=COLOURS["ECE"])
    axes.grid(axis="y")
    _value_axis(axes, [float(summary.values[key]) for summary in group])
    return second


def _name_outer_axes(axes: Axes, second: Axes, place: int, columns: int, panels: int) -> None:
    """Name the accuracy axis of the leftmost panels, and the ECE axis of the rightmost."""
    if place % columns == 0:
        axes.set_ylabel("accuracy (%)")
    if place % columns == columns - 1 or place == panels - 1:
        second.set_ylabel("ECE (%)", color=COLOURS["ECE"])


def _line(axes: Axes, metric: str, key: str, group: Sequence[Summary]) -> None:
    known = [(float(s.values[key]), m, s.spreads[metric]) for s in group if (m := s.means[metric]) is not None]
    if not known:
        return
    x, mean = np.array([k[0] for k in known]), 100 * np.array([k[1] for k in known])
    band = 100 * np.array([k[2] or 0.0 for k in known])
    colour, dashes = COLOURS[metric], "--" if metric == "ECE" else "-"
    axes.plot(x, mean, color=colour, linestyle=dashes, marker=MARKERS[metric], markersize=5.5, label=metric)
    if band.any():
        axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)


def _value_axis(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) >= _LOG_RATIO:
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)


def _share_top(seconds: Sequence[Axes]) -> None:
    """Give all ECE axes one scale that begins at 0."""
    top = max(axes.get_ylim()[1] for axes in seconds)
    for axes in seconds:
        axes.set_ylim(0, top)


def _legend(figure: Figure, *axes: Axes) -> None:
    pairs = [pair for part in axes for pair in zip(*part.get_legend_handles_labels(), strict=True)]
    handles, labels = [handle for handle, _ in pairs], [label for _, label in pairs]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
