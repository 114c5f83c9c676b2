"""From a drawing function to inline SVG that takes its colours and fonts from the page."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Matplotlib knows no CSS variables: these stand-in colours are drawn, then replaced, so light and dark mode can differ.
INK, MUTED, GRID = "#010203", "#010204", "#010205"
_NAMED = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"}
SERIES = 8
GROUP_COLORS = {"many": "#02a000", "medium": "#02a001", "few": "#02a002"}
# Marker of matplotlib, and the same shape as an SVG path in a box of 14 for the legend.
_MARKERS = {
    "o": "M1 7a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z",
    "s": "M1.5 1.5h11v11h-11z",
    "^": "M7 1l6.5 12h-13z",
    "D": "M7 0.5l6.5 6.5l-6.5 6.5l-6.5 -6.5z",
    "v": "M7 13l6.5 -12h-13z",
    "P": "M5 1h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "X": "M1 4l3 -3l3 3l3 -3l3 3l-3 3l3 3l-3 3l-3 -3l-3 3l-3 -3l3 -3z",
    "*": "M7 0.5l1.8 4.5h4.7l-3.8 3l1.4 4.8l-4.1 -2.9l-4.1 2.9l1.4 -4.8l-3.8 -3h4.7z",
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class may be called "$x$"
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 2.0,
    "path.simplify": True,
}


def series_color(index: int) -> str:
    """Return the stand-in colour of run `index`; the palette repeats after `SERIES` runs."""
    return f"#03b0{index % SERIES:02x}"


def marker(index: int) -> str:
    """Return the marker of run `index`: shape tells runs apart where colour does not."""
    return list(_MARKERS)[(index + index // SERIES) % len(_MARKERS)]


def marker_path(index: int) -> str:
    """Return the marker of run `index` as the path of an SVG in a box of 14."""
    return _MARKERS[marker(index)]


def draw_svg(key: str, label: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Draw one figure as an inline SVG element.

    Args:
        key: unique in the page; ids inside the SVG begin with it.
        label: what the figure shows, for screen readers.
        size: width and height in inches.
        draw: receives the empty figure.
    """
    with mpl.rc_context({**_STYLE, "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has the glyph, the measuring font need not
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True)
    return _inline(buffer.getvalue(), key, label)


def percent_axis(axes: Axes, low: float = 0.0, high: float = 100.0) -> None:
    """Make the y axis one of percent."""
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.grid(visible=False, axis="x")


def _inline(document: str, key: str, label: str) -> str:
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*</defs>", "", body)
    body = re.sub(r">\s+<", "><", body)
    # Only inside tags: between them stands text, which may be a class name.
    body = re.sub(r"<[^>]*>", lambda tag: _themed(_slim(_unique_ids(tag.group(), key))), body)
    return _opening(body, label) + body[body.index(">") + 1 :]


def _opening(body: str, label: str) -> str:
    box = re.search(r'viewBox="([^"]*)"', body)
    view = box.group(1) if box else "0 0 400 300"
    return f'<svg viewBox="{view}" role="img" aria-label="{html.escape(label, quote=True)}">'


def _unique_ids(tag: str, key: str) -> str:
    """Matplotlib hashes ids from content, so two equal clip paths in two figures would share one."""
    tag = re.sub(r'<g id="[^"]*"', "<g", tag)
    tag = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', tag)
    tag = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{key}-\1"', tag)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", tag)


def _slim(tag: str) -> str:
    tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)  # the family comes from the page
    if not tag.startswith("<image"):
        tag = re.sub(r"(\d+\.\d{2})\d+", r"\1", tag)
    return re.sub(r"\s*\n\s*", " ", tag.replace("xlink:href", "href"))


def _themed(tag: str) -> str:
    for stand_in, name in _NAMED.items():
        tag = tag.replace(stand_in, name)
    for group, stand_in in GROUP_COLORS.items():
        tag = tag.replace(stand_in, f"var(--{group})")
    return re.sub(r"#03b00(\d)", r"var(--run\1)", tag)
