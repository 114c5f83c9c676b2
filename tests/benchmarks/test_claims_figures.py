"""Figures come from rows, the same rows give the same bytes, and other rows others."""

from __future__ import annotations

import re

import pytest
from claims_tools.figures import draw, update

from relatum.errors import ConfigError

GRID = """
[[grid]]
[grid.over.loss]
bs = { "relation.name" = "none" }
bf = {}
[grid.over]
"train.epochs" = [10, 20, 40]
[grid.labels]
bs = "Balanced Softmax"
bf = "BatchFormer"
"""
LINES = {"file": "a.svg", "kind": "lines", "x": "train.epochs", "lines": "loss", "columns": ["All"]}
BARS = {"file": "b.svg", "kind": "differences", "base": {"loss": "bs"}, "columns": ["All"]}
VALUES = {"file": "c.svg", "kind": "values", "x": "train.epochs", "arms": ["bf-*"]}


@pytest.fixture
def grown(make_claim, make_rows):
    def make(gain):
        claim = make_claim(GRID)
        values = {f"bs-{n}": {0: n / 100, 1: n / 100 + 0.02} for n in (10, 20, 40)}
        values |= {f"bf-{n}": {0: n / 100 + gain, 1: n / 100 + gain + 0.01} for n in (10, 20, 40)}
        return claim, make_rows(claim, values)

    return make


@pytest.mark.parametrize("spec", [LINES, BARS, VALUES], ids=lambda spec: spec["kind"])
def test_the_same_rows_give_the_same_bytes_and_others_do_not(grown, spec):
    first, second, other = (draw(*grown(gain), spec) for gain in (0.03, 0.03, 0.05))
    assert first == second and first != other
    assert first.startswith(b"<?xml") and b"matplotlib.org" not in first and b"<dc:date>" not in first


def test_lines_have_the_labels_of_their_parts_and_every_value_of_x(grown):
    text = draw(*grown(0.03), LINES).decode()
    words = re.findall(r">([^<>\n]+)</text>", text)
    assert {"Balanced Softmax", "BatchFormer", "10", "20", "40", "epochs", "All"} <= set(words)


def test_bars_are_as_long_as_the_differences(grown):
    def widths(gain):
        text = draw(*grown(gain), {**BARS, "arms": ["bf-*"]}).decode()
        bars = re.findall(
            r'<path d="M ([\d.]+) [\d.]+\nL [\d.]+ [\d.]+\nL ([\d.]+) [^"]*" clip-path[^>]*opacity: 0.7', text
        )
        return [abs(float(b) - float(a)) for a, b in bars]

    bars = widths(0.03)
    assert len(bars) == 3 and max(bars) - min(bars) < 0.1  # every schedule gains the same
    with_another = widths(-0.02)
    assert len(with_another) == 3 and with_another != bars


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**LINES, "kind": "pie"}, r"\[\[figure\]\] a.svg: kind is 'pie'; .*valid: differences, lines, values"),
        ({**LINES, "liness": "loss"}, r"unknown key 'liness'"),
        ({**LINES, "lines": "los"}, r"names the axis 'los', which no grid has"),
        ({**LINES, "file": "a.png"}, r"ends with .svg"),
        ({**LINES, "columns": ["al"]}, r"unknown column 'al'"),
        ({**BARS, "base": "bf-10", "arms": ["bf-10"]}, r"no arm of the figure b.svg has a base"),
        ({**VALUES, "arms": ["bf-10", "bf-20"]}, r"needs three arms and more that differ in train.epochs"),
    ],
)
def test_what_cannot_be_drawn_is_said(grown, spec, words):
    with pytest.raises(ConfigError, match=words):
        draw(*grown(0.03), spec)


def test_a_figure_is_stale_until_it_is_written(make_claim, make_rows):
    text = GRID + '[[figure]]\nfile = "a.svg"\nkind = "differences"\nbase = { loss = "bs" }\ncolumns = ["All"]\n'
    claim = make_claim(text)
    rows = make_rows(claim, {"bs-10": {0: 0.1}, "bf-10": {0: 0.2}})
    path = claim.folder / "a.svg"
    assert update([(claim, rows)], write=False) == [path] and not path.exists()
    assert update([(claim, rows)], write=True) == [path] and path.exists()
    assert update([(claim, rows)], write=True) == []
    assert update([(claim, make_rows(claim, {"bs-10": {0: 0.1}, "bf-10": {0: 0.3}}))], write=False) == [path]
