"""Random generators that are pure functions of where they are used, so that a resumed epoch repeats itself."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

# Tags keep the streams apart that are made from the same numbers.
_PURPOSES = {"batch": 9101, "sample": 9102, "mixing": 9103, "whitening": 9104}


def generator_for(purpose: Literal["batch", "sample", "mixing", "whitening"], *place: int) -> torch.Generator:
    """Return a fresh generator for `purpose` at `place`, for example (seed, epoch, position, rank); all >= 0."""
    entropy = np.random.SeedSequence([_PURPOSES[purpose], *map(int, place)]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy))
