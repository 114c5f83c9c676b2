"""Draw the figures of all claims, or of the claims that are named, from their results.

Run: python benchmarks/claims/figures.py [CLAIM …]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims_tools.claim import all_claims, find_claim
from claims_tools.command_line import run_script
from claims_tools.figures import update
from claims_tools.rows import checked_rows


def main() -> int:
    made = argparse.ArgumentParser(description="Draw the figures of claims.", allow_abbrev=False)
    made.add_argument("claims", nargs="*", help="default: all")
    names = made.parse_args().claims
    claims = [find_claim(name) for name in names] if names else all_claims()
    for path in update([(claim, checked_rows(claim)) for claim in claims], write=True):
        print(f"{path}: written")
    return 0


if __name__ == "__main__":
    run_script(main)
