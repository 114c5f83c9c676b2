"""Does an exported file compute what the model computes? Compared on several batch sizes before it is handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relatum.data.preprocess import Preprocess
from relatum.errors import ModelError

TOLERANCE = 1e-4
BATCH_SIZES = (1, 2, 5)


def probe_images(preprocess: Preprocess, count: int) -> Tensor:
    """Return random images (count, 3, S, S) as the model would see them; the same ones for the same count."""
    generator = torch.Generator().manual_seed(count)
    size = preprocess.image_size
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    return preprocess.normalise(pixels)


def check_same_logits(
    what: str,
    model: Callable[[Tensor], Any],
    exported: Callable[[Tensor], Any],
    preprocess: Preprocess,
    sizes: Sequence[int] = BATCH_SIZES,
) -> float:
    """Compare float32 logits (N, K) of `model` and `exported` at several batch sizes N.

    Args:
        what: name of the exported form, for the error message.
        model: the original.
        exported: what was written and read back.
        preprocess: says what the images look like.
        sizes: values of N.

    Returns:
        The largest absolute difference.

    Raises:
        ModelError: the shapes differ, the original is not finite, or the difference is above `TOLERANCE`.
    """
    largest = 0.0
    with torch.no_grad():
        for count in sizes:
            images = probe_images(preprocess, count)
            largest = max(largest, _difference(what, model(images), exported(images)))
    return largest


def _difference(what: str, expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        raise ModelError(
            f"the {what} export returns {tuple(found.shape)} where the model returns {tuple(expected.shape)}; "
            "it was not kept. Export in another format."
        )
    if not expected.isfinite().all():
        raise ModelError("the model returns NaN or infinite logits; nothing was exported. Take an earlier checkpoint.")
    difference = (expected - found).abs().max().item()
    # Written so that NaN, which compares false with everything, is refused too.
    if not difference <= TOLERANCE:
        raise ModelError(
            f"the logits of the {what} export differ from the model's by {difference:.3g} (allowed: {TOLERANCE:g}); "
            "it was not kept. Export in another format."
        )
    return difference
