"""Muon: timm's, in a precision that the processor multiplies in."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import timm.optim
import torch
from timm.optim import muon as timms

from relatum.config import TrainConfig
from relatum.errors import ConfigError
from relatum.train.device import multiplies_in_bfloat16

# Of the AdamW beside Muon, whose own momentum `train.momentum` is.
_ADAMW_BETA1 = 0.9


class Muon(timm.optim.Muon):
    """timm's Muon, with its matrix products in float32 where the processor has none in bfloat16.

    timm always takes bfloat16. A CPU that has to imitate it needed a hundred times as long for a product, and the
    optimizer four fifths of the time of `fast-10min`.
    """

    def step(self, closure: Any = None) -> Any:
        """Take one step."""
        devices = {p.device for group in self.param_groups for p in group["params"]}
        if all(map(multiplies_in_bfloat16, devices)):
            return super().step(closure)
        with _products_in(torch.float32):
            return super().step(closure)


@contextmanager
def _products_in(dtype: torch.dtype) -> Iterator[None]:
    """For a while, let timm's Newton-Schulz iteration compute in `dtype`, which its optimizer has no setting for."""
    usual = timms.zeropower_via_newtonschulz
    timms.zeropower_via_newtonschulz = functools.partial(usual, dtype=dtype)
    try:
        yield
    finally:
        timms.zeropower_via_newtonschulz = usual


def build_muon(groups: list[dict[str, Any]], config: TrainConfig) -> Muon:
    """Build Muon, with AdamW for every group that is not marked as inner matrices (`groups.divide_for_muon`).

    With Nesterov's momentum timm looks a step ahead in AdamW, too (NAdamW).
    """
    for group in groups:
        group.setdefault("use_fallback", True)
    try:
        return Muon(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            # As few as quick trainings use; the usual five would take two thirds longer.
            ns_steps=3,
            ns_coefficients="original",
            adjust_lr_fn="original",
            fallback_lr_scale=config.adamw_scale,
            betas=(_ADAMW_BETA1, config.beta2),
        )
    except ValueError as error:
        raise ConfigError(f"muon cannot be built: {error}; see the train settings.") from error
