"""Show an inspection to a person: a compact terminal view, and a plot of the class counts."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relatum.data.advice import Finding, advice, amount, reason
from relatum.data.files import shown
from relatum.data.inspect import Inspection, SplitInspection
from relatum.errors import RelatumError
from relatum.prior import GROUPS, ClassPrior

_ENDS = 4
_MOST_REASONS = 12
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_COLOURS = {"many": "#3b6fb6", "medium": "#e0a02b", "few": "#c8443c"}
_LABEL_LIMIT = 40
_BAR_LIMIT = 400


def render(inspection: Inspection, console: Console) -> None:
    """Print the inspection: findings first, then splits, classes and advice; about 60 lines at most."""
    console.print(Text(f"Inspection of {shown(inspection.source)}", style="bold"))
    findings = inspection.findings
    others = 3 if len(findings) <= 4 else 1  # so that many kinds of problems still fit the screen
    for i, finding in enumerate(findings):
        _print_finding(finding, console, _reasons(inspection) if finding.kind == "unreadable" else others if i else 3)
    if not findings:
        console.print(Text(_no_problems(inspection), style="green"))
    console.print(_split_table(inspection))
    for split in inspection.splits:
        console.print(Text(_shortened(_size_words(split), console.width)))
    console.print(_class_table(inspection.train))
    console.print(Text("Advice", style="bold"))
    for sentence in advice(inspection):
        console.print(_bullet(sentence, console.width))


def plot_counts(inspection: Inspection, out: Path) -> Path:
    """Draw the sorted class counts of the training split, coloured by shot group, as a PNG; return `out`."""
    counts = np.sort(list(inspection.train.counts.values()))[::-1]
    figure = Figure(figsize=(9, 4.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_groups(axes, counts)
    _draw_thresholds(axes, counts)
    _label_axes(axes, inspection.train, counts)
    imbalance = f", imbalance {inspection.train.imbalance:.3g}" if inspection.train.samples else ""
    name = _shortened(shown(inspection.source), 50)
    summary = f"{amount(inspection.train.samples, 'training image')}, {amount(len(counts), 'class')}{imbalance}"
    axes.set_title(f"{name}\n{summary}".replace("$", r"\$"), fontsize=11, loc="left", pad=26)
    try:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, format="png")
    except OSError as error:
        # making the folder below a file fails with "File exists", which would mislead
        reason = f"{Path(out).parent} is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise RelatumError(f"cannot write the plot {out}: {reason}. Choose another place with --plot.") from error
    return Path(out)


def _print_finding(finding: Finding, console: Console, examples: int) -> None:
    hidden = f"  ({finding.count - examples:,} more with --json)" if finding.count > examples else ""
    title = Text(f"{finding.severity:8}{finding.text}", style=_STYLES[finding.severity])
    console.print(title + Text(hidden, style="dim"))
    for example in finding.examples[:examples]:
        console.print(Text(_shortened(f"{' ' * 8}{shown(example)}", console.width)), no_wrap=True, highlight=False)


def _reasons(inspection: Inspection) -> int:
    """How many unreadable images to show: one for each reason, three at least."""
    reasons = {reason(note) for split in inspection.splits for note in split.unreadable}
    return min(max(len(reasons), 3), _MOST_REASONS)


def _no_problems(inspection: Inspection) -> str:
    if not any(split.checked for split in inspection.splits):
        return "No problems found in the counts: nothing is listed twice, no class is empty. No image was looked into."
    return "No problems found: all images that were read are sound, no duplicates, no empty class."


def _split_table(inspection: Inspection) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("split", "images", "classes", "per class", "ratio", "Gini", "many/medium/few"):
        table.add_column(column, justify="left" if column == "split" else "right", no_wrap=True)
    for split in inspection.splits:
        present = [count for count in split.counts.values() if count] or [0]
        table.add_row(
            split.name,
            f"{split.samples:,}",
            f"{split.classes:,}",
            f"{min(present):,}-{max(present):,}",
            "-" if split.imbalance is None else f"{split.imbalance:.3g}",
            "-" if split.gini is None else f"{split.gini:.2f}",
            "/".join(str(split.groups[name]) for name in GROUPS),
        )
    return table


def _size_words(split: SplitInspection) -> str:
    if split.sizes is None:
        return f"{split.name}: no readable image" if split.checked else f"{split.name}: images not looked into"
    width, height, distinct = split.sizes.width, split.sizes.height, split.sizes.distinct
    modes = ", ".join(f"{n:,} {mode}" for mode, n in split.sizes.modes.items())
    if distinct == 1:
        return f"{split.name}: all {width.smallest}x{height.smallest} pixels; {modes}"
    return (
        f"{split.name}: width {width.smallest}-{width.largest} (median {width.median:.0f}), height {height.smallest}-"
        f"{height.largest} (median {height.median:.0f}), {distinct:,} sizes; {modes}"
    )


def _class_table(train: SplitInspection) -> Table:
    """Show all classes if they are few, else both ends of the sorted list."""
    ordered = sorted(train.counts.items(), key=lambda item: -item[1])
    listed = ordered if len(ordered) <= 2 * _ENDS + 2 else [*ordered[:_ENDS], None, *ordered[-_ENDS:]]
    largest = max(ordered[0][1], 1)
    group = dict(zip(train.counts, _group_names(np.array(list(train.counts.values()))), strict=True))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("training class", no_wrap=True, max_width=32)
    table.add_column("images", justify="right")
    table.add_column("", no_wrap=True)
    for item in listed:
        if item is None:
            table.add_row(Text(f"… {len(ordered) - 2 * _ENDS:,} more classes", style="dim"), "", "")
            continue
        name, count = item
        bar = Text("█" * max(round(24 * count / largest), 1 if count else 0), style=_COLOURS[group[name]])
        table.add_row(Text(shown(name)), f"{count:,}", bar + Text(f" {group[name]}", style="dim"))
    return table


def _group_names(counts: np.ndarray) -> list[str]:
    if not counts.sum():
        return ["few"] * len(counts)
    return [GROUPS[k] for k in ClassPrior(counts).shot_groups("standard").group]


def _bullet(sentence: str, width: int) -> Text:
    lines = textwrap.wrap(
        shown(sentence), max(width, 30), initial_indent="• ", subsequent_indent="  ", break_on_hyphens=False
    )
    return Text("\n".join(lines))


def _shortened(text: str, width: int) -> str:
    """Cut the middle out of a long line: the end of a path and the reason at its end tell most."""
    if len(text) <= width:
        return text
    keep = max(width - 1, 2)
    return f"{text[: keep // 3]}…{text[-(keep - keep // 3) :]}"


def _draw_groups(axes: Axes, counts: np.ndarray) -> None:
    group = np.array(_group_names(counts))
    for name in GROUPS:
        here = np.flatnonzero(group == name)
        if not len(here):
            continue
        label = f"{name} ({amount(len(here), 'class')})"
        if len(counts) <= _BAR_LIMIT:
            axes.bar(here, counts[here], width=0.85 if len(counts) <= 100 else 1.0, color=_COLOURS[name], label=label)
        else:  # thousands of bars are slow and moiré: one filled staircase per group
            heights = np.where(group == name, counts, 0)
            axes.stairs(heights, np.arange(len(counts) + 1) - 0.5, fill=True, color=_COLOURS[name], label=label)


def _draw_thresholds(axes: Axes, counts: np.ndarray) -> None:
    top = max(int(counts.max(initial=1)) * 1.3, 10)
    axes.set_ylim(0.7, top)
    axes.set_yscale("log")
    axes.set_xlim(-0.6, len(counts) - 0.4)
    for level, words in ((100, "many\n> 100"), (20, "few\n< 20")):
        if level < top:
            axes.axhline(level, color="0.25", linewidth=0.9, linestyle="--")
            # beside the plot, where no bar can lie behind the words
            axes.text(1.01, level, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="0.25")


def _label_axes(axes: Axes, train: SplitInspection, counts: np.ndarray) -> None:
    axes.set_ylabel("training images (log scale)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.legend(
        frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.3, borderpad=0
    )
    empty = int((counts == 0).sum())
    suffix = f"; {amount(empty, 'class')} without images" if empty else ""
    if len(counts) > _LABEL_LIMIT:
        axes.set_xlabel(f"classes, most frequent first{suffix}")
        return
    names = [name for name, _ in sorted(train.counts.items(), key=lambda item: -item[1])]
    words = [_shortened(shown(name), 18).replace("$", r"\$") for name in names]
    axes.set_xticks(
        range(len(names)), words, rotation=45 if len(names) > 8 else 0, ha="right" if len(names) > 8 else "center"
    )
    axes.tick_params(axis="x", length=0, labelsize=8)
    axes.set_xlabel(f"classes{suffix}" if suffix else "")
