"""Tables come from rows, and stand between markers; all around them is left alone."""

from __future__ import annotations

import pytest
from claims_kit import ARMS
from claims_tools.overview import overview_table
from claims_tools.pages import filled, fresh, update
from claims_tools.tables import base_of, claim_table

from relatum.errors import ConfigError
from relatum.report.format import DASH

TABLE = """
[[table]]
name = "main"
columns = ["All"]
head = "loss"
base = "ce"
"""
GRID = """
[[grid]]
[grid.over.loss]
bs = { "relation.name" = "none" }
bf = {}
[grid.over]
"train.epochs" = [10, 20]
[grid.labels]
bs = "Balanced Softmax"
[[table]]
name = "gain"
arms = ["bf-*"]
columns = ["All"]
base = { loss = "bs" }
"""


def lines(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_table_has_mean_spread_difference_seeds_and_minutes(make_claim, make_rows):
    claim = make_claim(ARMS + TABLE)
    rows = make_rows(claim, {"ce": {0: 0.30, 1: 0.32}, "bs": {0: 0.35, 1: 0.38}})
    heads, _, ce, bs = lines(claim_table(claim, rows, "main"))
    assert heads == ["loss", "All", "All - cross-entropy", "seeds", "core minutes"]
    assert ce == ["cross-entropy", "31.0 ± 1.4", "", "2", "2.0"]
    assert bs == ["Balanced Softmax", "36.5 ± 2.1", "+5.5 ± 0.5", "2", "2.0"]
    note = claim_table(claim, rows, "main").splitlines()[-1]
    assert "Percent on test, last epoch" in note and "paired by seed" in note
    assert note.endswith("1 thread on 2 cores of X, torch 9.")
    for row, precision in zip(rows, ["float32", "bfloat16", "bfloat16", None], strict=True):
        row["precision"] = precision
    assert claim_table(claim, rows, "main").endswith("1 thread on 2 cores of X, torch 9, float32 or bfloat16.")


def test_arms_without_rows_are_left_out_until_they_have_some(make_claim, make_rows):
    claim = make_claim(ARMS + TABLE)
    assert [line[0] for line in lines(claim_table(claim, make_rows(claim, {"bs": {0: 0.3}}), "main"))[2:]] == [
        "Balanced Softmax"
    ]
    assert claim_table(claim, [], "main").endswith("No run has a row yet.")


def test_in_a_grid_each_arm_is_compared_with_its_own_neighbour(make_claim, make_rows):
    claim = make_claim(GRID)
    rows = make_rows(claim, {"bs-10": {0: 0.1}, "bs-20": {0: 0.2}, "bf-10": {0: 0.13}, "bf-20": {0: 0.26}})
    heads, _, ten, twenty = lines(claim_table(claim, rows, "gain"))
    assert heads[2] == "All - Balanced Softmax"
    assert (ten[2], twenty[2]) == ("+3.0 (one seed)", "+6.0 (one seed)")
    assert base_of(claim, claim.arm("bs-10"), {"loss": "bs"}) is None
    with pytest.raises(ConfigError, match="base names the axis 'los', which no grid has"):
        base_of(claim, claim.arm("bs-10"), {"los": "bs"})


def test_a_neighbour_is_of_the_same_grid_also_where_another_grid_has_the_same_axes(make_claim):
    twin = GRID.split("[[table]]")[0].replace("[[grid]]", '[[grid]]\nname = "other-{loss}-{train.epochs}"')
    claim = make_claim(GRID + twin)
    base = base_of(claim, claim.arm("other-bf-20"), {"loss": "bs"})
    assert base is not None and base.name == "other-bs-20"


def test_unknown_columns_and_tables_are_named(make_claim, make_rows):
    claim = make_claim(ARMS + TABLE.replace('"All"', '"Al"'))
    with pytest.raises(ConfigError, match=r"unknown column 'Al'; did you mean 'All'"):
        claim_table(claim, [], "main")
    with pytest.raises(ConfigError, match="has no table 'mian'; did you mean 'main'"):
        claim_table(claim, [], "mian")


def test_the_overview_links_each_claim_from_where_it_stands(make_claim, make_rows, tmp_path):
    claim = make_claim()
    rows = make_rows(claim, {"ce": {0: 0.30, 1: 0.32}, "bs": {0: 0.35}})
    _, _, first, second = lines(overview_table([(claim, rows)], tmp_path / "docs" / "page.md"))
    assert first[0] == "[Balanced losses help](../some-claim/README.md): they do"
    assert first[1:] == ["generated shapes", "cross-entropy", "31.0 ± 1.4", DASH, "2", "2.0", DASH]
    assert second == ["", "", "Balanced Softmax", "35.0", DASH, "1", "2.0", "50.7"]


def test_only_what_stands_between_markers_is_replaced():
    text = "a\n<!-- results: x/y -->\nold\n\nolder\n<!-- end -->\nb\n<!-- results: z -->\n<!-- end -->\n"
    new = filled(text, "page", lambda name: f"table of {name}")
    assert new == (
        "a\n<!-- results: x/y -->\n\ntable of x/y\n\n<!-- end -->\nb\n"
        "<!-- results: z -->\n\ntable of z\n\n<!-- end -->\n"
    )
    assert filled(new, "page", lambda name: f"table of {name}") == new


@pytest.mark.parametrize(
    "text",
    [
        "<!-- results: x -->\nno end\n",
        "<!-- results: x -->\n<!-- results: y -->\n<!-- end -->\n",
        "<!-- results:x-->\n<!-- end -->\n",
    ],
)
def test_a_marker_that_is_not_closed_loses_nothing(text):
    with pytest.raises(ConfigError, match="page: "):
        filled(text, "page", lambda name: "table")


def test_a_page_is_stale_until_it_is_written(make_claim, make_rows, tmp_path):
    claim = make_claim(ARMS + TABLE)
    rows = make_rows(claim, {"ce": {0: 0.30}})
    page = tmp_path / "page.md"
    page.write_text("<!-- results: some-claim/main -->\n<!-- end -->\n")
    assert update([(claim, rows)], write=False, paths=[page]) == [page] and "30.0" not in page.read_text()
    assert update([(claim, rows)], write=True, paths=[page]) == [page] and "30.0" in page.read_text()
    assert update([(claim, rows)], write=False, paths=[page]) == []
    rows = make_rows(claim, {"ce": {0: 0.31}})
    assert update([(claim, rows)], write=False, paths=[page]) == [page]
    page.write_text("<!-- results: som-claim -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match=r"there is no claim 'som-claim'; did you mean 'some-claim'"):
        fresh(page, [(claim, rows)])
