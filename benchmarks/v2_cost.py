"""What BatchFormerV2 costs: a training step with it over one without, beside what the counted FLOPs say.

Sites: the first, the middle, the last block, and all blocks; fractions of the batch in the related stream; both
layers; and the model after detach, in training and inference. Each case is measured in turn with the un-attached
model, round by round, so that noise of the machine hits both; the ratio is the median over the rounds. FLOPs are
counted by torch over forward and backward of the very same step, attention and its backward included; the optimizer is
timed, not counted.

Run: python benchmarks/v2_cost.py [--model vit-tiny-p4] [--batch 64] [--rounds 9] [--out v2_cost.jsonl]
Bars: measured at most 1.1 x counted; all blocks at fraction 0.25 at most 1.45; detached 1.00, same outputs.
Cases that are in the --out file are not measured again. --profile says where the time of a case goes.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import common
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from relatum import BatchFormerV2, attach, create_model
from relatum.bench.measure import interleaved, seconds_per_call
from relatum.relation import Relation
from relatum.relation.attention import LAYERS
from relatum.relation.sites import find_sites
from relatum.train.device import autocast, pick_precision

CLASSES, IMAGE = 100, 32
BAR_COUNTED, BAR_QUARTER = 1.1, 1.45
SITES = {"first": 0.0, "middle": 0.5, "last": 1.0}  # where in the row of blocks
DETACHED = ("detached, training", "detached, inference")


@dataclass(frozen=True)
class Case:
    """What is compared with the un-attached model."""

    site: str
    fraction: float = 1.0
    variant: Any = ""
    model: str = ""
    batch: int = 0
    threads: int = 0
    precision: str = ""
    dropout: float = 0.5


class Step:
    """One training step of a model: forward, loss, backward, AdamW."""

    def __init__(self, model: nn.Module, relation: Relation | None, case: Case) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model, self.relation, self.precision = model.train(), relation, case.precision
        self.inputs = torch.randn(case.batch, 3, IMAGE, IMAGE, generator=generator)
        self.targets = torch.randint(CLASSES, (case.batch,), generator=generator)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> None:
        """Train on the batch."""
        self.optimizer.zero_grad(set_to_none=True)
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        """The part of the step whose FLOPs are counted."""
        with autocast(self.precision, torch.device("cpu")):
            logits = self.model(self.inputs)
        targets = self.targets if self.relation is None else self.relation.targets(self.targets)
        nn.functional.cross_entropy(logits.float(), targets).backward()

    def flops(self) -> int:
        """Count one step."""
        with FlopCounterMode(display=False) as counter:
            self.backward()
        return counter.get_total_flops()


def host(case: Case) -> nn.Module:
    """The un-attached model, always with the same weights."""
    torch.manual_seed(0)
    return create_model(case.model, CLASSES, img_size=IMAGE)


def site_names(model: nn.Module, where: str) -> str | tuple[str, ...]:
    """The place of a case in this model."""
    if where == "all":
        return "all"
    blocks = [site.name for site in find_sites(model, BatchFormerV2(at="all"), None)]
    return (blocks[int(SITES[where] * (len(blocks) - 1))],)


def attached(case: Case) -> Step:
    """The step of the model with the relation of `case`."""
    model = host(case)
    spec = BatchFormerV2(
        at=site_names(model, case.site),
        related_fraction=case.fraction,
        variant=case.variant,
        dropout=case.dropout,
    )
    return Step(model, attach(model, spec), case)


def detached(case: Case) -> Step:
    """The step of a model that had a relation and was trained with it."""
    model = host(case)
    weights = copy.deepcopy(model.state_dict())
    relation = attach(model, BatchFormerV2(at="all"))
    Step(model, relation, case)()
    relation.detach()
    model.load_state_dict(weights)
    return Step(model, None, case)


def measured(with_it: Callable[[], object], without: Callable[[], object], rounds: int, steps: int) -> dict[str, Any]:
    """Seconds a call of both, in turn, and the ratio of each round."""
    for call in (with_it, without):
        call()
    ways = {"with": with_it, "without": without}
    timed = {name: lambda call=call: seconds_per_call(call, steps) for name, call in ways.items()}
    seconds = interleaved(timed, rounds)
    ratios = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    middle = statistics.median(ratios)
    spread = {"smallest": min(ratios), "largest": max(ratios), "rounds": rounds}
    return {"measured": middle, **spread, "seconds_without": statistics.median(seconds["without"])}


def run(case: Case, rounds: int, steps: int) -> dict[str, Any]:
    """Measure and count one case."""
    without = Step(host(case), None, case)
    if case.site == "detached, inference":
        return _inference(detached(case).model.eval(), without.model.eval(), without, rounds, 5 * steps)
    step = detached(case) if case.site in DETACHED else attached(case)
    counted = step.flops() / without.flops()
    return {**measured(step, without, rounds, steps), "counted": counted}


def _inference(model: nn.Module, never: nn.Module, step: Step, rounds: int, steps: int) -> dict[str, Any]:
    with torch.inference_mode(), autocast(step.precision, torch.device("cpu")):
        equal = torch.equal(model(step.inputs), never(step.inputs))
        result = measured(lambda: model(step.inputs), lambda: never(step.inputs), rounds, steps)
    return {**result, "counted": 1.0, "equal": equal}


def verdict(result: dict[str, Any]) -> str:
    """How a case stands to its bar."""
    if result["site"] in DETACHED:
        return {True: "outputs equal", False: "OUTPUTS DIFFER", None: ""}[result.get("equal")]
    over = result["measured"] / result["counted"]
    words = [f"above {BAR_COUNTED} x counted"] if over > BAR_COUNTED else []
    if (result["site"], result["fraction"]) == ("all", 0.25) and result["measured"] > BAR_QUARTER:
        words.append(f"above {BAR_QUARTER}")
    return ", ".join(words) or "ok"


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    name = f"{result['site']:<20}{result['variant']:<8}{result['fraction']:<9g}"
    rounds = f"({result['smallest']:.3f} to {result['largest']:.3f})"
    over = result["measured"] / result["counted"]
    return f"{name}{result['measured']:>8.3f} {rounds:<18}{result['counted']:>8.3f}{over:>9.3f}   {verdict(result)}"


def self_times(step: Step, steps: int = 3) -> dict[str, float]:
    """Milliseconds of each operation in one step."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    return {event.key: event.self_cpu_time_total / steps / 1000 for event in profiler.key_averages()}


def print_profile(case: Case, rows: int = 16) -> None:
    """Where the extra time of a case is spent: operations by what they cost more than in the un-attached step."""
    before, after = self_times(Step(host(case), None, case)), self_times(attached(case))
    extra = sorted(((after[key] - before.get(key, 0.0), key) for key in after), reverse=True)
    total, base = sum(after.values()), sum(before.values())
    print(f"{case.site}, {case.variant}, fraction {case.fraction:g}: {base:.0f} ms without, {total:.0f} ms with")
    for more, key in extra[:rows]:
        print(f"  {more:>8.1f} ms more   {before.get(key, 0.0):>8.1f} -> {after[key]:>8.1f}   {key[:80]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="vit-tiny-p4", help="any ViT of create_model, at 32 pixels")
    add("--batch", type=int, default=64)
    add("--threads", type=int, default=2)
    add("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    add("--dropout", type=float, default=0.5, help="inside the relation")
    add("--sites", default="first,middle,last,all", help="of first, middle, last, all; empty for none")
    add("--fractions", default="1,0.5,0.25")
    add("--variants", default="stable,paper")
    add("--rounds", type=int, default=9)
    add("--steps", type=int, default=1, help="steps timed together in each round")
    add("--out", default="", help="JSON lines; cases found there are not measured again")
    add("--profile", action="store_true", help="print where the extra time goes instead of measuring it")
    args = parser.parse_args()
    for name, known in (("sites", (*SITES, "all", "")), ("variants", tuple(LAYERS))):
        unknown = set(getattr(args, name).split(",")) - set(known)
        if unknown:
            parser.error(f"--{name}: '{min(unknown)}' is none of {', '.join(filter(None, known))}")
    return args


def cases_of(args: argparse.Namespace) -> Iterator[Case]:
    """All cases asked for."""
    precision = pick_precision(args.precision, torch.device("cpu"))
    same = {"model": args.model, "batch": args.batch, "threads": args.threads, "precision": precision}
    fractions = [float(fraction) for fraction in args.fractions.split(",")]
    sites = [site for site in args.sites.split(",") if site]
    for variant, site, fraction in product(args.variants.split(","), sites, fractions):
        yield Case(site, fraction, variant, dropout=args.dropout, **same)
    if not args.profile:
        yield from (Case(site, **same) for site in DETACHED)


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    cases = list(cases_of(args))
    print(f"{args.model}, batch {args.batch}, {args.threads} threads, {cases[0].precision}, dropout {args.dropout:g}")
    if args.profile:
        for case in cases:
            print_profile(case)
        return
    print(f"{'site':<20}{'layer':<8}{'fraction':<9}{'measured':>8} {'(rounds)':<18}{'counted':>8}{'m / c':>9}   bar")
    for case in cases:
        wanted = asdict(case)
        done = next((r for r in common.kept_results(args.out) if {k: r.get(k) for k in wanted} == wanted), None)
        if done is None:
            done = {**wanted, **run(case, args.rounds, args.steps)}
            common.keep_result(args.out, done)
        print(row(done), flush=True)
    print(f"bars: measured <= {BAR_COUNTED} x counted; all, fraction 0.25 <= {BAR_QUARTER}; detached 1.00 within noise")


if __name__ == "__main__":
    main()
