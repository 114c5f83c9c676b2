"""Two kinds of figures: scores against a setting, one line per part of a grid; and differences to a base as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from claims_tools.claim import Claim
from claims_tools.grids import Arm
from claims_tools.rows import Row
from claims_tools.settings import arm_config
from claims_tools.spread import by_seed, difference, estimate
from claims_tools.tables import base_label, base_of, known_columns, part_label
from relatum.errors import ConfigError
from relatum.sweep.convergence import _colours
from relatum.sweep.figures import INK, MARKERS, MUTED, STYLE, _value_axis, new_figure
from relatum.sweep.grid import settings_of

Spec = Mapping[str, Any]
_BAR = 0.8  # of the room that an arm has


def draw_lines(claim: Claim, rows: Sequence[Row], spec: Spec) -> Figure:
    """Draw a score against a setting: a panel per column (and part of `panels`), a line per part of `lines`.

    Error bars are one standard deviation over the seeds.
    """
    arms = _arms(claim, rows, spec)
    columns, panels = known_columns(spec.get("columns", ["All"]), claim.name), _parts(claim, arms, spec.get("panels"))
    names = _parts(claim, arms, spec["lines"])
    with mpl.rc_context(STYLE):
        figure = new_figure(1.0 + 4.4 * len(columns), 0.8 + 3.2 * len(panels))
        grid = figure.subplots(len(panels), len(columns), squeeze=False, sharex=True)
        for row, panel in enumerate(panels):
            for place, column in enumerate(columns):
                axes = grid[row][place]
                shown = [arm for arm in arms if not panel or arm.parts.get(spec["panels"]) == panel]
                _lines(axes, claim, rows, shown, spec, column, names)
                titles = [part_label(claim, spec["panels"], panel)] if panel else []
                axes.set_title(", ".join([*titles, column]))
        for axes in grid[-1]:
            axes.set_xlabel(spec["x"].rpartition(".")[2].replace("_", " "))
        for first in grid[:, 0]:
            first.set_ylabel("percent")
        _finish(figure, grid[0][0], spec)
    return figure


def draw_differences(claim: Claim, rows: Sequence[Row], spec: Spec) -> Figure:
    """Draw what each arm has more than its base, as bars with the standard error of the difference."""
    columns = known_columns(spec.get("columns", ["All", "Few"]), claim.name)
    pairs = [(arm, base) for arm in _arms(claim, rows, spec) if (base := base_of(claim, arm, spec["base"]))]
    if not pairs:
        raise ConfigError(f"{claim.name}: no arm of the figure {spec['file']} has a base.")
    with mpl.rc_context(STYLE):
        figure = new_figure(7.4, 1.2 + 0.32 * len(pairs) * len(columns))
        axes = figure.subplots()
        height = _BAR / len(columns)
        for number, (column, colour) in enumerate(zip(columns, _colours(len(columns)), strict=True)):
            found = [difference(by_seed(rows, a.name, column), by_seed(rows, b.name, column)) for a, b in pairs]
            place = np.arange(len(pairs)) - _BAR / 2 + (number + 0.5) * height
            axes.barh(
                place,
                [0.0 if entry is None else entry.mean for entry in found],
                0.9 * height,
                xerr=[0.0 if entry is None else entry.error or 0.0 for entry in found],
                color=colour,
                alpha=0.7,
                error_kw={"ecolor": INK, "elinewidth": 1.4, "capsize": 2.5},
                label=column,
            )
        axes.set_yticks(range(len(pairs)), [arm.label for arm, _ in pairs])
        axes.invert_yaxis()
        axes.axvline(0.0, color=MUTED, linewidth=1.0)
        axes.spines["right"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(f"points more than {base_label(claim, spec['base'])} (± standard error)")
        _finish(figure, axes, spec)
    return figure


def _arms(claim: Claim, rows: Sequence[Row], spec: Spec) -> list[Arm]:
    done = {row["arm"] for row in rows}
    return [arm for arm in claim.select(spec.get("arms", ())) if arm.name in done]


def _parts(claim: Claim, arms: Sequence[Arm], axis: str | None) -> list[str]:
    """Return the parts of an axis in their order; one empty name where there is no axis."""
    if axis is None:
        return [""]
    if not any(axis in arm.parts for arm in claim.arms):
        raise ConfigError(f"{claim.name}: a figure names the axis '{axis}', which no grid has.")
    return list(dict.fromkeys(arm.parts[axis] for arm in arms if axis in arm.parts))


def _lines(
    axes: Axes, claim: Claim, rows: Sequence[Row], arms: Sequence[Arm], spec: Spec, column: str, names: Sequence[str]
) -> None:
    values: list[float] = []
    for name, colour, mark in zip(names, _colours(len(names)), _marks(len(names)), strict=True):
        points = []
        for arm in arms:
            found = estimate(by_seed(rows, arm.name, column)) if arm.parts.get(spec["lines"]) == name else None
            if found is not None:
                points.append((float(settings_of(arm_config(claim, arm))[spec["x"]]), found.mean, found.std or 0.0))
        if points:
            label = part_label(claim, spec["lines"], name)
            x, mean, std = zip(*sorted(points), strict=True)
            axes.errorbar(x, mean, std, color=colour, marker=mark, markersize=5.5, capsize=2.5, label=label)
            values += x
    if values:
        _value_axis(axes, sorted(set(values)))
    axes.spines["right"].set_visible(False)
    axes.grid(axis="y")


def _marks(number: int) -> list[str]:
    known = list(MARKERS.values())
    return [known[index % len(known)] for index in range(number)]


def _finish(figure: Figure, axes: Axes, spec: Spec) -> None:
    if "title" in spec:
        figure.suptitle(spec["title"])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(len(labels), 4)), frameon=False)
