"""The figures of a claim, from its rows, by the [[figure]] parts of claim.toml. The same rows give the same bytes."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from claims_tools.claim import ROOT, Claim
from claims_tools.drawing import draw_differences, draw_lines
from claims_tools.rows import SCORES, Row
from claims_tools.settings import arm_config
from claims_tools.spread import by_seed, estimate
from claims_tools.toml_tables import take
from relatum.errors import ConfigError, suggest
from relatum.files import write_if_new
from relatum.sweep.figures import STYLE, draw_values
from relatum.sweep.grid import settings_of
from relatum.sweep.results import Summary

Spec = Mapping[str, Any]
_SHARED = {"arms": list, "title": str}
_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "values": ({"x": str}, {}),
    "lines": ({"x": str, "lines": str}, {"columns": list, "panels": str}),
    "differences": ({"base": (str, dict)}, {"columns": list}),
}


def figure_path(claim: Claim, spec: Spec) -> Path:
    """Return where a figure is kept: below docs/ of the repository if its name says so, else beside claim.toml."""
    name = str(spec["file"])
    return ROOT / name if name.startswith("docs/") else claim.folder / name


def draw(claim: Claim, rows: Sequence[Row], spec: Spec) -> bytes:
    """Return a figure as an SVG file."""
    where = f"{claim.name}, [[figure]] {spec.get('file', '')}".rstrip()
    kind = spec.get("kind")
    if kind not in _KINDS:
        raise ConfigError(f"{where}: kind is {kind!r}; {suggest(str(kind), _KINDS)}")
    required, optional = _KINDS[kind]
    take(spec, where, {"file": str, "kind": str, **required}, {**_SHARED, **optional})
    if not spec["file"].endswith(".svg"):
        raise ConfigError(f"{where}: the name of a figure ends with .svg.")
    if kind == "values":
        return _values(claim, rows, spec)
    drawn = {"lines": draw_lines, "differences": draw_differences}[kind]
    return _svg(lambda: drawn(claim, rows, spec))


def update(found: Sequence[tuple[Claim, Sequence[Row]]], write: bool) -> list[Path]:
    """Return the figures that differ from fresh ones, and write these if asked to."""
    stale = []
    for claim, rows in found:
        for spec in claim.figures:
            data, path = draw(claim, rows, spec), figure_path(claim, spec)
            if not path.exists() or path.read_bytes() != data:
                stale.append(path)
                if write:
                    write_if_new(path, data)
    return stale


def _svg(make: Callable[[], Figure]) -> bytes:
    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}):
        stream = io.StringIO()
        make().savefig(stream, format="svg", metadata={"Date": None})
    return _slim(stream.getvalue())


def _values(claim: Claim, rows: Sequence[Row], spec: Spec) -> bytes:
    """All, Many, Medium, Few and ECE against one setting, as `relatum sweep` draws them."""
    arms = [arm for arm in claim.select(spec.get("arms", ())) if any(row["arm"] == arm.name for row in rows)]
    summaries = []
    for arm in arms:
        found = {key: estimate(by_seed(rows, arm.name, key)) for key in SCORES}
        means = {key: None if value is None else value.mean / 100 for key, value in found.items()}
        spreads = {key: None if not value or value.std is None else value.std / 100 for key, value in found.items()}
        value = settings_of(arm_config(claim, arm))[spec["x"]]
        summaries.append(Summary(arm.name, {spec["x"]: value}, arm.seeds, means, spreads, {}))
    with tempfile.TemporaryDirectory() as folder, mpl.rc_context({"svg.fonttype": "none"}):
        written = [path for path in draw_values(Path(folder), [spec["x"]], summaries) if path.suffix == ".svg"]
        if not written:
            raise ConfigError(f"{claim.name}: a figure of values needs three arms and more that differ in {spec['x']}.")
        return _slim(written[0].read_text(encoding="utf-8"))


def _slim(document: str) -> bytes:
    """Leave out what names a version or a place, and digits beyond a hundredth of a point."""
    text = re.sub(r"<metadata>.*?</metadata>\n?|<!DOCTYPE.*?>\n?", "", document, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag.group()), text)
    return "\n".join(line.rstrip() for line in text.splitlines()).encode() + b"\n"
