"""What a model wants to see of the training images before it is trained."""

from __future__ import annotations

import torch
from torch import nn

from relatum.data.loaders import Loaders
from relatum.data.seeding import generator_for
from relatum.errors import ConfigError, printable

# Patches of that many images tell the covariance of twelve values well: the filters change by less than a percent.
_IMAGES = 1000


def whiten_if_asked(model: nn.Module, loaders: Loaders) -> None:
    """Show training images to a model with a `whiten` method, such as FastNet; others stay as they are.

    The same images for every training seed and process, as evaluation sees them, without augmentation.
    """
    whiten = getattr(model, "whiten", None)
    if not callable(whiten):
        return
    source = loaders.train.source
    chosen = torch.randperm(len(source), generator=generator_for("whitening", 0))[:_IMAGES].tolist()
    whiten(torch.stack([loaders.preprocess(source.load(index)) for index in chosen]))


@torch.no_grad()
def check_sizes(model: nn.Module, loaders: Loaders) -> None:
    """Refuse a progressive resolution that the model cannot follow: before training, not after a third of it."""
    schedule = loaders.train.sizes
    if schedule is None:
        return
    training = model.training
    model.eval()
    try:
        for side in sorted(set(schedule.sizes)):
            model(torch.zeros(2, 3, side, side))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"data.sizes has {side}, and {type(model).__name__} does not take images of {side} pixels "
            f"({printable(str(error)).splitlines()[0]}); leave data.sizes out, or take a convolutional model."
        ) from error
    finally:
        model.train(training)
