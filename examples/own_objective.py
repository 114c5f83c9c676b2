"""Write a loss of your own as an Objective, check it against its definition, and train with it.

The loss is Poly-1 (Leng et al., ICLR 2022): cross-entropy plus epsilon x (1 - p of the true class).

Run: python examples/own_objective.py
"""

from typing import Any

import torch
from torch import Tensor

import relatum
from relatum.config import DataConfig, TrainConfig
from relatum.data.shapes import shapes_source
from relatum.objectives import DeferredReweighting, Objective
from relatum.objectives.functional import expected_loss
from relatum.train import Display


class Poly1(Objective):
    """Cross-entropy + epsilon (1 - p_y).

    Args:
        epsilon: weight of the linear term.
        **options: `prior`, `label_smoothing` and `reduction` of `Objective`.
    """

    def __init__(self, epsilon: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.epsilon = epsilon

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """A table of the loss for every possible class; `expected_loss` picks or averages, whatever the targets."""
        log_p = logits.float().log_softmax(1)
        return expected_loss(-log_p + self.epsilon * (1 - log_p.exp()), targets, self.label_smoothing)


def main() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    objective = Poly1(epsilon=2.0)
    p = logits.softmax(1)[torch.arange(5), labels]
    print(f"loss {objective(logits, labels):.6f}, by its definition {(-p.log() + 2 * (1 - p)).mean():.6f}")
    one_hot = torch.nn.functional.one_hot(labels, 3).float()
    print(f"soft targets that are one-hot give the same: {objective(logits, one_hot):.6f}")
    objective.set_class_weights([1.0, 1.0, 4.0])
    print(f"class weights come with the base class: {objective(logits, labels):.6f}")

    # It fits everywhere an objective fits: with a relation, and inside deferred re-weighting.
    train = shapes_source([150, 60, 24, 10], image_size=16)
    test = shapes_source(50, classes=4, image_size=16, split="test")
    settings = TrainConfig(epochs=6, lr=0.05, precision="float32", eval_every=0)
    data = DataConfig(image_size=16, batch_size=32, normalise="half")
    loaders = relatum.loaders_from_splits({"train": train, "test": test}, data, epochs=settings.epochs)
    model = relatum.create_model("resnet20-cifar", loaders.prior.num_classes)
    relation = relatum.attach(model, relatum.BatchFormer())
    loss = DeferredReweighting(Poly1(prior=loaders.prior), loaders.prior, start=0.5)
    task = relatum.ClassificationTask(model, loss, relation)
    run = relatum.fit(task, loaders, settings, display=Display(quiet=True))
    weights = loss.class_weights
    print(f"{run.status} after {run.steps} steps; class weights on at the end: {weights is not None}")
    print({name: value and round(value, 3) for name, value in run.scores["test"].row().items()})


if __name__ == "__main__":
    main()
