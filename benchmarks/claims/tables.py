"""Make all result tables anew, between their markers in README.md, docs/ and the claims' own pages; then the figures.

Run: make claims-tables, or python benchmarks/claims/tables.py; with --check nothing is written, and the exit code is 1
if a file is not what the results say.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims_tools import figures, pages
from claims_tools.command_line import run_script


def main() -> int:
    made = argparse.ArgumentParser(description="Make result tables and figures anew.", allow_abbrev=False)
    made.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something is not up to date")
    check = made.parse_args().check
    found = pages.load_all()
    changed = [*pages.update(found, not check, pages.pages()), *figures.update(found, not check)]
    for path in changed:
        print(f"{path}: {'is not what the results say; run make claims-tables' if check else 'written'}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    run_script(main)
