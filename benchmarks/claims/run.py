"""Train what a claim still lacks and append one row per run to its results.jsonl.

Run: python benchmarks/claims/run.py CLAIM [--data DIR] [--jobs 2] [--only ARM,…] [--seeds 0-2] [--minutes N]
Rerunning goes on where it was stopped. Finished rows are in the repository, so another machine can go on as well.
     python benchmarks/claims/run.py CLAIM --adopt RUN…    rows for runs that were trained otherwise, such as by a sweep
     python benchmarks/claims/run.py CLAIM --drop ARM:SEED…   remove rows, for example after a change of settings
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claims_tools.adopting import adopt
from claims_tools.claim import find_claim
from claims_tools.command_line import parser, run_script, words
from claims_tools.rows import drop_rows
from claims_tools.running import Options, run_claim

from relatum.sweep.grid import parse_seeds


def main() -> int:
    made = parser("Train what a claim still lacks.")
    made.add_argument("claim", help="a folder of benchmarks/claims")
    made.add_argument("--only", default="", help="arms, with commas between them; wildcards such as 'ce-*' are fine")
    made.add_argument("--seeds", default="", help="of these seeds only: 0-2 or 0,3")
    made.add_argument("--minutes", type=float, default=0.0, help="stop after so many; runs save and go on later")
    made.add_argument("--adopt", nargs="+", default=[], metavar="RUN", help="run directories, or folders of them")
    made.add_argument("--drop", nargs="+", default=[], metavar="ARM:SEED", help="remove rows")
    args = made.parse_args()
    claim = find_claim(args.claim)
    if args.drop:
        print(f"{drop_rows(claim, args.drop)} rows dropped from {claim.results}")
        return 0
    if args.adopt:
        print(f"{adopt(claim, [Path(path) for path in args.adopt])} rows appended to {claim.results}")
        return 0
    seeds = parse_seeds(args.seeds) if args.seeds else None
    work = Path(args.work or Path("runs") / "claims" / claim.name)
    return run_claim(claim, Options(work, args.data, args.jobs, words(args.only), seeds, args.minutes))


if __name__ == "__main__":
    run_script(main)
