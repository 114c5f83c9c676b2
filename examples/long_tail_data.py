"""Build a long tail, count it, divide it into shot groups, and see what each sampler shows the model.

Run: python examples/long_tail_data.py
"""

import numpy as np

from relatum.config import DataConfig, SamplerName
from relatum.data import build_sampler, long_tail_counts, make_long_tailed, stratified_holdout
from relatum.data.shapes import shapes_source
from relatum.prior import GROUPS, SHOT_RULES, ClassPrior

SAMPLERS: tuple[SamplerName, ...] = (
    "instance", "class-balanced", "square-root", "progressive", "effective-number", "repeat-factor",
)  # fmt: skip


def show_profiles() -> None:
    print("images per class, 10 classes, largest 500, imbalance 100")
    for profile in ("exponential", "step", "pareto"):
        counts = long_tail_counts(profile, num_classes=10, largest=500, imbalance=100)
        print(f"  {profile:<12}{' '.join(f'{n:4d}' for n in counts)}   total {counts.sum()}")


def show_shot_rules() -> None:
    cifar = ClassPrior(long_tail_counts("exponential", num_classes=100, largest=500, imbalance=100))
    print(f"\nCIFAR-100-LT, imbalance 100: {cifar}")
    for rule in SHOT_RULES:
        if rule != "cifar10":  # fixed positions of ten classes
            sizes = cifar.shot_groups(rule).sizes()
            print(f"  {rule:<10}" + "  ".join(f"{name} {sizes[name]}" for name in GROUPS))


def show_samplers() -> None:
    balanced = shapes_source(200, classes=12, image_size=16)
    source = make_long_tailed(balanced, "exponential", imbalance=50, largest=200, seed=0)
    train, held = stratified_holdout(source, 0.2, seed=0)
    prior = train.prior()
    print(f"\n{source}: {len(train)} to train on, {len(held)} held out; {prior}")
    print(f"rarest class '{train.class_names[-1]}': {prior.counts[-1]} of {source.prior().counts[-1]} kept")
    groups = prior.shot_groups("standard")
    shares = " ".join(f"{name:>8}" for name in GROUPS)
    print(f"\n{'':<18}share of the draws in %\n{'sampler (epoch)':<18}{shares}  {'samples':>8}")
    for name in SAMPLERS:
        sampler = build_sampler(DataConfig(sampler=name), train.targets, train.num_classes, seed=0, epochs=10)
        for epoch in (0, 9) if name == "progressive" else (0,):
            drawn = train.targets[sampler.indices(epoch)]
            row = [100 * np.isin(drawn, groups.classes(group)).mean() for group in GROUPS]
            label = f"{name} ({epoch + 1})" if name == "progressive" else name
            print(f"{label:<18}{' '.join(f'{share:8.1f}' for share in row)}  {len(drawn):8d}")
    again = build_sampler(DataConfig(), train.targets, train.num_classes, seed=0, epochs=10)
    print(f"same (seed, epoch), same order: {np.array_equal(again.indices(3), again.indices(3))}; ", end="")
    print(f"next epoch, another: {not np.array_equal(again.indices(3), again.indices(4))}")


def main() -> None:
    show_profiles()
    show_shot_rules()
    show_samplers()


if __name__ == "__main__":
    main()
