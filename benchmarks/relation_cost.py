"""What BatchFormer costs: the training step with it against without, and inference after detach against never attached.

Run: RELATUM_DATA=... python benchmarks/relation_cost.py [--rounds 15] [--steps 8]
Bars: training step at most 1.05 x; inference 1.00 x within noise, outputs bitwise equal.
"""

from __future__ import annotations

import argparse
import copy

import common
import torch

from relatum import BatchFormer, attach, create_model
from relatum.batch import Batch
from relatum.bench.measure import interleaved, seconds_per_call
from relatum.data.loaders import Loaders


def training(loaders: Loaders, config: common.RunConfig, batch: Batch, rounds: int, steps: int) -> None:
    """Print the cost of a training step with BatchFormer over one without."""
    loops = {name: common.trainer(loaders, config, name == "with") for name in ("without", "with")}

    def measure(name: str) -> float:
        loops[name]._step([batch])
        return seconds_per_call(lambda: loops[name]._step([batch]), steps)

    seconds = interleaved({name: lambda n=name: measure(n) for name in loops}, rounds)
    print(f"training step, with / without BatchFormer: {common.ratio(seconds['with'], seconds['without'])}")
    print("  bar: at most 1.05")


def inference(batch: Batch, rounds: int, steps: int) -> None:
    """Print the cost of inference after detach over a model that was never attached."""
    never = create_model("resnet32-cifar", 100).eval()
    detached = copy.deepcopy(never)
    relation = attach(detached, BatchFormer())
    detached.train()(batch.inputs)  # one training pass moves the BatchNorm statistics: put them back below
    relation.detach()
    detached.load_state_dict(never.state_dict())
    detached.eval()
    with torch.inference_mode():
        equal = torch.equal(never(batch.inputs), detached(batch.inputs))
        models = {"never": never, "detached": detached}
        ways = {n: lambda m=m: seconds_per_call(lambda: m(batch.inputs), steps) for n, m in models.items()}
        seconds = interleaved(ways, rounds)
    print(f"inference, detached / never attached: {common.ratio(seconds['detached'], seconds['never'])}")
    print(f"  outputs bitwise equal: {equal}   bar: 1.00 within noise, equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    config = common.cifar_config("cifar100-lt-100/balanced-softmax")
    loaders, words = common.cifar_loaders(config)
    batch = next(iter(loaders.train.epoch(0)))
    print(f"ResNet-32, {words}, batch {len(batch)}, {torch.get_num_threads()} threads")
    training(loaders, config, batch, args.rounds, args.steps)
    inference(batch, args.rounds, args.steps)


if __name__ == "__main__":
    main()
