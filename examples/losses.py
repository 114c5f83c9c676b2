"""Compare objectives on one batch: by shot group, with soft targets from mixup, and after training (post hoc).

Run: python examples/losses.py
"""

import torch

from relatum import Batch, ClassPrior
from relatum.data import Mixer, long_tail_counts
from relatum.evaluate import adjust_logits
from relatum.objectives import (
    LDAM,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    DeferredReweighting,
    Focal,
    LogitAdjusted,
    Objective,
    VectorScaling,
)

CLASSES = 10


def objectives(prior: ClassPrior) -> dict[str, Objective]:
    return {
        "cross-entropy": CrossEntropy(prior, reduction="none"),
        "balanced-softmax": BalancedSoftmax(prior, reduction="none"),
        "logit-adjusted, tau 1.5": LogitAdjusted(prior, tau=1.5, reduction="none"),
        "vector-scaling": VectorScaling(prior, gamma=0.3, tau=1.0, reduction="none"),
        "focal, gamma 2": Focal(gamma=2.0, reduction="none"),
        "class-balanced": ClassBalanced(prior, reduction="none"),
        "ldam (cosine logits)": LDAM(prior, margin=0.5, scale=30.0, reduction="none"),
    }


def main() -> None:
    torch.manual_seed(0)
    prior = ClassPrior(long_tail_counts("exponential", CLASSES, largest=500, imbalance=100))
    head, tail = 0, CLASSES - 1
    print(f"{prior}; the head has {prior.counts[head]} images, the tail {prior.counts[tail]}")

    # An undecided model: what does a sample of the head and one of the tail pay under each objective?
    logits, labels = torch.zeros(2, CLASSES), torch.tensor([head, tail])
    print(f"\n{'loss at equal logits':<26}{'head':>8}{'tail':>8}   corrects the prior")
    for name, objective in objectives(prior).items():
        losses = objective(logits, labels)
        print(f"{name:<26}{losses[0]:8.3f}{losses[1]:8.3f}   {objective.corrects_prior}")

    # Deferred re-weighting switches class weights on late; the loop only calls set_epoch.
    deferred = DeferredReweighting(CrossEntropy(prior), prior, start=0.8)
    for epoch in (0, 159, 160):
        deferred.set_epoch(epoch, 200)
        weights = deferred.class_weights
        shown = "none" if weights is None else f"{weights[head]:.3f} ... {weights[tail]:.3f}"
        print(f"deferred re-weighting, epoch {epoch:3d} of 200: class weights {shown}")

    # Soft targets: every objective takes the expectation of its loss over them.
    batch = Batch(torch.randn(8, 3, 8, 8), torch.randint(CLASSES, (8,)), torch.arange(8))
    mixed = Mixer(mixup_alpha=0.8, cutmix_alpha=0.0, num_classes=CLASSES)(batch, torch.Generator().manual_seed(3))
    scores = torch.randn(8, CLASSES)
    soft = BalancedSoftmax(prior)(scores, mixed.targets)
    by_hand = -(mixed.targets * torch.log_softmax(scores + torch.tensor(prior.log_prior).float(), 1)).sum(1).mean()
    print(f"\nmixup: targets {tuple(mixed.targets.shape)}, first row sums to {mixed.targets[0].sum():.3f}")
    print(f"balanced softmax on soft targets {soft:.4f}, by hand {by_hand:.4f}")

    # Post hoc: a model trained with plain cross-entropy, corrected at evaluation instead.
    undecided = torch.log(torch.tensor(prior.train_prior)).float().unsqueeze(0)  # it has learnt the prior, nothing else
    print(
        f"\nbefore adjustment it says class {undecided.argmax(1).item()} with {undecided.softmax(1).max():.0%}, ",
        end="",
    )
    print(f"after it every class with {adjust_logits(undecided, prior, tau=1.0).softmax(1).max():.0%}")


if __name__ == "__main__":
    main()
