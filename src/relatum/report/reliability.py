"""Calibration by shot group: reliability diagrams side by side, and ECE and MCE in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relatum.prior import GROUPS
from relatum.report.format import NOT_AVAILABLE, finite, percent, percent_sign, plural
from relatum.report.records import RunRecord
from relatum.report.svg import GROUP_COLORS, MUTED, draw_svg, percent_axis

# A row of three diagrams each: more of them would make the page heavy and say little that the table does not.
MOST_RUNS = 4
_SIZE = (9.6, 2.9)


@dataclass(frozen=True)
class CalibrationTable:
    """ECE and MCE, written, by kind of confidence and by shot group."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def calibration_table(records: Sequence[RunRecord]) -> CalibrationTable | None:
    """Return ECE / MCE in percent: softmax, sigmoid where a run has it, each group; None where only the softmax is."""
    scored = [record for record in records if record.primary.get("reliability")]
    heads = ["Softmax"]
    heads += ["Sigmoid"] if any(record.primary.get("sigmoid") for record in scored) else []
    heads += [name.capitalize() for name in GROUPS] if any(map(_has_groups, scored)) else []
    if len(heads) == 1:
        return None
    rows = tuple((r.name, tuple(_errors(_measured(r, head)) for head in heads)) for r in scored)
    return CalibrationTable(tuple(heads), rows)


def group_panels(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Return {"name", "svg"} of the first runs that know their calibration by group: diagrams of all three groups."""
    known = [record for record in records if _has_groups(record)][:MOST_RUNS]
    return [{"name": record.name, "svg": group_reliability(record, i)} for i, record in enumerate(known)]


def group_reliability(record: RunRecord, index: int) -> str:
    """Draw accuracy over confidence in bins, one panel for each shot group; a group without images says so."""
    groups = record.primary["group_reliability"]

    def draw(figure: Figure) -> None:
        for axes, name in zip(figure.subplots(1, len(GROUPS), sharey=True), GROUPS, strict=True):
            _panel(axes, name, groups.get(name))
        figure.axes[0].set_ylabel("accuracy")

    parts = [f"{name} {percent_sign((groups.get(name) or {}).get('ece'))}" for name in GROUPS]
    label = f"Reliability of {record.name} by shot group; ECE: {', '.join(parts)}"
    return draw_svg(f"group-calibration{index}", label, _SIZE, draw)


def _panel(axes: Axes, name: str, found: dict[str, Any] | None) -> None:
    percent_axis(axes, high=102)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 25, 50, 75, 100], ["", "25 %", "", "75 %", ""])  # labels at the ends would meet the neighbour's
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1.2, linestyle="--")
    if not found:
        axes.set_title(f"{name}: no images")
        return
    bins, color = found["reliability"], GROUP_COLORS[name]
    edges = 100 * np.array(bins["edges"], dtype=float)
    accuracy, confidence = (np.array([_hundredfold(x) for x in bins[key]]) for key in ("accuracy", "confidence"))
    axes.stairs(np.nan_to_num(accuracy), edges, fill=True, color=color, alpha=0.35)
    axes.plot(confidence, accuracy, "o-", color=color, markersize=4)
    axes.set_title(f"{name}: ECE {percent_sign(found['ece'])}, {plural(int(found['count']), 'image')}")
    axes.set_xlabel("confidence")


def _hundredfold(value: Any) -> float:
    number = finite(value)
    return np.nan if number is None else 100 * number


def _has_groups(record: RunRecord) -> bool:
    return any((record.primary.get("group_reliability") or {}).values())


def _measured(record: RunRecord, head: str) -> dict[str, Any]:
    scores = record.primary
    if head == "Softmax":
        return scores
    found = scores.get("sigmoid") if head == "Sigmoid" else (scores.get("group_reliability") or {}).get(head.lower())
    return found or {}


def _errors(found: dict[str, Any]) -> str:
    if finite(found.get("ece")) is None:
        return NOT_AVAILABLE
    return f"{percent(found['ece'])} / {percent(found.get('mce'))}"
