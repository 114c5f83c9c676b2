"""The moving average of the weights."""

from __future__ import annotations

from timm.utils import ModelEmaV3
from torch import nn

# While few steps have been taken the average reaches over a tenth of them, and forgets the random start. Else a run
# that is shorter than the decay was chosen for would end with a good part of it.
_SHARE = 10.0


def moving_average(model: nn.Module, decay: float) -> ModelEmaV3:
    """Start an average of the weights and buffers of `model`; update it with the number of the step, from 1 on.

    Step t keeps min(decay, (t - 1) / (t + 9)) of what the average was.

    Args:
        model: copied, and then followed.
        decay: in (0, 1).
    """
    return ModelEmaV3(model, decay=decay, use_warmup=True, warmup_gamma=_SHARE, warmup_power=1.0)
