"""Read the finished runs of a folder into results.jsonl and print mean ± standard deviation over seeds for each arm.

Run: python benchmarks/claims/vit-on-small-data/collect.py RUNS   (RUNS holds plain-s0, all-s0, last-s0, …)
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def read(folder: Path) -> dict[str, Any]:
    """The numbers of one run that the claim is about."""
    scores = json.loads((folder / "scores.json").read_text())["test"]
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "train"][-1]
    arm, _, seed = folder.name.rpartition("-s")
    numbers = {"arm": arm, "seed": int(seed), "top1": scores["top1"], "top5": scores["top5"], "nll": scores["nll"]}
    numbers |= {name: group["accuracy"] for name, group in scores["groups"].items()}
    streams = {key: last[key] for key in ("loss/plain", "loss/related", "agreement") if key in last}
    return {**numbers, "loss": last["loss"], **streams, "steps": manifest["steps"], "epochs": last["epoch"]}


def table(results: list[dict[str, Any]]) -> str:
    """One line for each arm."""
    lines = []
    for arm in dict.fromkeys(r["arm"] for r in results):
        runs = [r for r in results if r["arm"] == arm]
        values = [100 * r["top1"] for r in runs]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        seeds = ", ".join(str(r["seed"]) for r in runs)
        lines.append(f"{arm:<16} top-1 {statistics.fmean(values):.2f}{spread}   seeds {seeds}")
    return "\n".join(lines)


def main() -> None:
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/scores.json"))
    results = [read(folder) for folder in folders]
    (HERE / "results.jsonl").write_text("".join(f"{json.dumps(result)}\n" for result in results))
    print(table(results))


if __name__ == "__main__":
    main()
