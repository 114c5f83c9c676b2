"""Imbalanced Gaussian blobs, and the linear classifier that plain cross-entropy finds on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relatum.classifier import CachedFeatures, FeatureSet

COUNTS = (300, 60, 6)
WIDTH = 4


def blob(counts, seed) -> FeatureSet:
    """Overlapping blobs, class k around its own fixed centre."""
    centres = torch.randn(len(counts), WIDTH, generator=torch.Generator().manual_seed(5))
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return FeatureSet(centres[targets] + 0.9 * torch.randn(len(targets), WIDTH, generator=draw), targets)


def optimum(data: FeatureSet, weights, decay: float) -> nn.Linear:
    """Minimise the weighted cross-entropy, sum of weights 1, plus decay/2 |theta|^2, in float64 with second order."""
    layer = nn.Linear(WIDTH, int(data.targets.max()) + 1).double()
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    h, y, w = data.features.double(), data.targets, torch.as_tensor(weights, dtype=torch.float64)
    solver = torch.optim.LBFGS(layer.parameters(), max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        losses = -layer(h).log_softmax(1)[torch.arange(len(y)), y]
        loss = (w * losses).sum() + decay / 2 * sum((p**2).sum() for p in layer.parameters())
        loss.backward()
        return loss

    solver.step(closure)
    return layer


@pytest.fixture(scope="session")
def features() -> CachedFeatures:
    """Train, val and test; val is held out, test is reported."""
    even = (200,) * len(COUNTS)
    return CachedFeatures.from_splits({"train": blob(COUNTS, 1), "val": blob(even, 2), "test": blob(even, 3)})


@pytest.fixture(scope="session")
def head(features) -> nn.Linear:
    """What plain cross-entropy finds on the imbalanced blobs."""
    count = len(features.train)
    return optimum(features.train, torch.full((count,), 1 / count), 1e-4).float()


@pytest.fixture(scope="session")
def best_linear():
    """The function `optimum`."""
    return optimum
