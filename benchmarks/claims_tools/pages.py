"""Put generated tables between their markers in Markdown files; all that stands around them is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from claims_tools.claim import ROOT, Claim, all_claims
from claims_tools.overview import overview_table
from claims_tools.rows import Row, checked_rows
from claims_tools.tables import claim_table
from relatum.errors import ConfigError, suggest
from relatum.files import write_if_new

OVERVIEW = "overview"
_BLOCK = re.compile(r"^<!-- results: (?P<name>\S+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_BEGIN = re.compile(r"^<!-- results:", re.MULTILINE)
Rows = Sequence[tuple[Claim, Sequence[Row]]]


def pages(root: Path = ROOT) -> list[Path]:
    """Return the files that may have markers."""
    claims = (root / "benchmarks" / "claims").glob("*/README.md")
    return [
        root / "README.md",
        root / "benchmarks" / "README.md",
        *sorted((root / "docs").glob("*.md")),
        *sorted(claims),
    ]


def fresh(page: Path, found: Rows) -> str:
    """Return the text of a page with all its tables made anew."""
    return filled(page.read_text(encoding="utf-8"), str(page), lambda name: _table(name, page, found))


def filled(text: str, origin: str, table: Callable[[str], str]) -> str:
    """Return a text with `table(name)` between each pair of markers.

    Args:
        text: Markdown, with `<!-- results: NAME -->` and `<!-- end -->` on lines of their own around each table.
        origin: how errors name the file.
        table: makes the table of a name.
    """
    for block in _BLOCK.finditer(text):
        if len(_BEGIN.findall(block.group())) > 1:
            raise ConfigError(f"{origin}: no <!-- end --> behind <!-- results: {block['name']} -->.")
    if len(_BEGIN.findall(text)) > len(_BLOCK.findall(text)):
        raise ConfigError(f"{origin}: a marker is not closed; write <!-- results: NAME -->, then <!-- end -->.")
    return _BLOCK.sub(lambda m: f"<!-- results: {m['name']} -->\n\n{table(m['name'])}\n\n<!-- end -->", text)


def load_all() -> list[tuple[Claim, list[Row]]]:
    """Read every claim with its rows."""
    return [(claim, checked_rows(claim)) for claim in all_claims()]


def update(found: Rows, write: bool, paths: Sequence[Path]) -> list[Path]:
    """Return the pages whose tables differ from fresh ones, and write these if asked to."""
    stale = []
    for page in paths:
        text = fresh(page, found)
        if text != page.read_text(encoding="utf-8"):
            stale.append(page)
            if write:
                write_if_new(page, text.encode())
    return stale


def _table(name: str, page: Path, found: Rows) -> str:
    if name == OVERVIEW:
        return overview_table(found, page)
    known = {claim.name: (claim, rows) for claim, rows in found}
    claim_name, _, part = name.partition("/")
    if claim_name not in known:
        raise ConfigError(f"{page}: there is no claim '{claim_name}'; {suggest(claim_name, known)}".rstrip("; "))
    return claim_table(*known[claim_name], part)
