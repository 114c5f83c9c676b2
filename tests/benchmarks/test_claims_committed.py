"""Result tables and figures are what the committed rows say, and the rows are what claim.toml asks for."""

import pytest
from claims_kit import BENCHMARKS
from claims_tools import figures, pages, smoke
from claims_tools.claim import SMOKE_RESULTS, all_claims
from claims_tools.rows import checked_rows

CLAIMS = all_claims()
by_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


def test_every_folder_is_a_claim():
    folders = {path.name for path in (BENCHMARKS / "claims").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == {claim.name for claim in CLAIMS} and len(folders) >= 3


@by_claim
def test_rows_are_finished_and_match_their_claim(claim):
    rows = checked_rows(claim)
    assert rows and all(row["status"] == "finished" and row["selection"] == "last epoch" for row in rows)


@by_claim
def test_the_page_of_a_claim_has_a_table_and_names_the_command(claim):
    text = (claim.folder / "README.md").read_text(encoding="utf-8")
    assert f"<!-- results: {claim.name}" in text and f"run.py {claim.name}" in text


@by_claim
def test_the_smallest_variant_is_on_record_and_shows_the_effect(claim):
    assert claim.smoke is not None, f"{claim.name} needs a [smoke] part"
    recorded, asked = smoke.small_claim(claim, claim.folder / SMOKE_RESULTS)
    found = smoke.effects(asked, checked_rows(recorded))
    assert len(found) >= 2
    assert all(smoke.judge(claim.name, asked, found, effect).kept for effect in found)


def test_tables_are_what_the_rows_say():
    found = pages.load_all()
    assert any("<!-- results: overview -->" in page.read_text(encoding="utf-8") for page in pages.pages())
    stale = pages.update(found, write=False, paths=pages.pages())
    assert not stale, f"run make claims-tables: {', '.join(map(str, stale))}"


def test_figures_are_what_the_rows_say():
    stale = figures.update(pages.load_all(), write=False)
    assert not stale, f"run make claims-tables: {', '.join(map(str, stale))}"
