"""Who teaches whom: the gradient of each sample's loss on the features of every other sample in the batch.

Run: python examples/analyse_gradients.py
"""

import numpy as np
import torch
from torch import Tensor

import relatum
from relatum.config import DataConfig, TrainConfig
from relatum.data import long_tail_counts
from relatum.data.shapes import shapes_source
from relatum.objectives import BalancedSoftmax
from relatum.prior import GROUPS
from relatum.train import Display

DATA = DataConfig(image_size=16, normalise="half", batch_size=64)


def influence(losses: Tensor, features: Tensor) -> Tensor:
    """Return |d loss_i / d feature_j|, (N, N), for losses (N,) and features (N, C)."""
    rows = [torch.autograd.grad(loss, features, retain_graph=True)[0].norm(dim=1) for loss in losses]
    return torch.stack(rows)


def main() -> None:
    torch.manual_seed(0)
    counts = long_tail_counts("exponential", 9, largest=120, imbalance=20)
    loaders = relatum.loaders_from_splits({"train": shapes_source(counts, image_size=16)}, DATA, epochs=3)
    model = relatum.create_model("resnet20-cifar", loaders.prior.num_classes)
    relation = relatum.attach(model, relatum.BatchFormer())
    task = relatum.ClassificationTask(model, BalancedSoftmax(loaders.prior), relation)
    settings = TrainConfig(epochs=3, lr=0.05, precision="float32", eval_every=0)
    relatum.fit(task, loaders, settings, display=Display(quiet=True))

    # Evaluation mode switches dropout off; inference() keeps the two streams, on purpose and only inside the block.
    batch = next(loaders.train.epoch(3))
    model.eval()
    with torch.no_grad():
        pooled = model.forward_head(model.forward_features(batch.inputs), pre_logits=True)
    features = pooled.requires_grad_()
    with relation.inference():
        streams = relation.streams(model.get_classifier()(features))
    per_sample = BalancedSoftmax(loaders.prior, reduction="none")
    strength = {name: influence(per_sample(logits, batch.targets), features) for name, logits in streams.items()}

    others = ~torch.eye(len(batch), dtype=torch.bool)
    for name, matrix in strength.items():
        own, cross = matrix.diagonal().mean(), matrix[others].mean()
        print(f"{name:<8} own gradient {own:.2e}, from each other sample {cross:.2e}")
    assert not strength["plain"][others].any(), "plain samples must not touch each other"

    shots = loaders.prior.shot_groups("thirds").group[batch.targets.numpy()]
    print("\nrelated stream, mean |d loss_i / d feature_j| in 1e-3, i != j, groups are thirds of the classes")
    print(f"{'loss of i':<12}" + "".join(f"{'j ' + name:>10}" for name in GROUPS) + f"{'samples':>10}")
    for g, name in enumerate(GROUPS):
        picks = [np.ix_(shots == g, shots == h) for h in range(3)]
        means = [strength["related"][pick][others[pick]].mean().item() for pick in picks]
        print(f"{name:<12}" + "".join(f"{1e3 * mean:10.3f}" for mean in means) + f"{(shots == g).sum():10d}")
    print("\na rare class reaches the features of the frequent ones through the batch, and the other way round")


if __name__ == "__main__":
    main()
