"""A training loop of your own: attach, repeat the targets, detach. The model is an ordinary nn.Module.

Run: python examples/own_loop.py
"""

import torch
from torch import Tensor, nn

import relatum
from relatum.config import DataConfig
from relatum.data import loaders_from_splits, long_tail_counts
from relatum.data.shapes import shapes_source
from relatum.objectives import BalancedSoftmax

CLASSES, EPOCHS = 6, 10


class SmallNet(nn.Module):
    """Four convolutions, a pooling, a classifier: it knows nothing of relatum."""

    def __init__(self, num_classes: int, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, out in ((3, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(2 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (N, 3, H, W) into logits (N, K)."""
        return self.classifier(self.body(images))


def right(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    # The generated shapes world with a long tail: six classes, from 200 images down to 10.
    counts = long_tail_counts("exponential", CLASSES, largest=200, imbalance=20)
    splits = {"train": shapes_source(counts), "test": shapes_source(50, classes=CLASSES, split="test")}
    loaders = loaders_from_splits(splits, DataConfig(batch_size=64, normalise="half"), seed=0, epochs=EPOCHS)
    model = SmallNet(loaders.prior.num_classes)
    objective = BalancedSoftmax(loaders.prior)

    relation = relatum.attach(model, relatum.BatchFormer(heads=4))
    print(relation)
    # After attach(): every parameter of the model and of the relation, the latter with a tenth of the rate.
    optimizer = torch.optim.SGD(relation.param_groups(0.05, lr_scale=0.1), lr=0.05, momentum=0.9)
    relation.check_optimizer(optimizer)

    for epoch in range(EPOCHS):
        model.train()
        for batch in loaders.train.epoch(epoch):
            logits = model(batch.inputs)  # (2N, K): [plain; related]
            loss = objective(logits, relation.targets(batch.targets))  # targets repeated in the same order
            optimizer.zero_grad()
            loss.backward()
            if epoch == 0:
                relation.check_gradients()
            optimizer.step()
        plain, related = relation.split(logits)
        accuracies = [right(part, batch.targets) for part in (plain, related)]
        print(
            f"epoch {epoch + 1}: inputs {tuple(batch.inputs.shape)} -> logits {tuple(logits.shape)}  "
            f"loss {loss.item():.2f}  last batch right: plain {accuracies[0]:.0%}, related {accuracies[1]:.0%}"
        )

    model = relation.detach()  # in place: the plain model, as if nothing had ever been attached
    print(f"after detach: {relation}, keys of ours left: {[k for k in model.state_dict() if 'relation' in k]}")
    scores = relatum.evaluate(model, loaders.evals["test"], loaders.prior, split="test")
    print({name: None if value is None else round(value, 3) for name, value in scores.row().items()})


if __name__ == "__main__":
    main()
