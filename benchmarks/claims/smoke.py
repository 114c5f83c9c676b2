"""Train the smallest variant of every claim and fail if an effect has disappeared.

Run: RELATUM_DATA=… make claims-smoke, or python benchmarks/claims/smoke.py [CLAIM …] [--data DIR] [--jobs 2]
     python benchmarks/claims/smoke.py CLAIM --calibrate 0-2   record what is expected, in smoke.jsonl of the claim
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims_tools.claim import Claim, all_claims, find_claim
from claims_tools.command_line import parser, run_script
from claims_tools.running import Options
from claims_tools.settings import data_settings
from claims_tools.smoke import Verdict, calibrate, check, small_claim

from relatum.sweep.grid import parse_seeds


def main() -> int:
    made = parser("Train the smallest variant of claims and compare the effect with the recorded one.")
    made.add_argument("claims", nargs="*", help="default: all")
    made.add_argument("--calibrate", default="", metavar="SEEDS", help="record the effect of these seeds instead")
    args = made.parse_args()
    claims = [find_claim(name) for name in args.claims] if args.claims else all_claims()
    chosen = [claim for claim in claims if claim.smoke is not None]
    for claim in chosen:  # data that is missing is said before anything is trained
        data_settings(small_claim(claim, claim.results)[0], args.data)
    options = Options(Path(args.work or "runs/claims-smoke"), args.data, args.jobs)
    if args.calibrate:
        return _calibrate_all(chosen, options, parse_seeds(args.calibrate))
    verdicts = [_check(claim, options, fresh=not args.work) for claim in chosen]
    print("", *(verdict.words for verdict in verdicts), sep="\n")
    for claim in claims:
        if claim.smoke is None:
            print(f"{claim.name}: has no [smoke], nothing was checked")
    return 0 if all(verdict.kept for verdict in verdicts) else 1


def _calibrate_all(claims: Sequence[Claim], options: Options, seeds: Sequence[int]) -> int:
    """Record one claim after the other; what stops one, such as Ctrl-C, stops all."""
    codes = (calibrate(claim, replace(options, work=options.work / claim.name), seeds) for claim in claims)
    return next((code for code in codes if code), 0)


def _check(claim: Claim, options: Options, fresh: bool) -> Verdict:
    if not fresh:
        return check(claim, replace(options, work=options.work / claim.name))
    with tempfile.TemporaryDirectory() as folder:
        return check(claim, replace(options, work=Path(folder)))


if __name__ == "__main__":
    run_script(main)
