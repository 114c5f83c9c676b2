"""FastNet: a shallow wide residual network for small images that learns much in few minutes of a CPU.

Four things make it quick. The stem is not learned but whitens patches of the training images (`whitening.py`). Every
convolution starts as the identity on the channels it gets. Each stage halves the image right behind its first
convolution, so that everything else runs on a quarter of the pixels. And there are few layers, each of them wide
enough to keep a processor's vector units busy.

With experts the last stage is there several times, side by side, each with a classifier of its own (`experts.py`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.experts import ExpertLinear
from relatum.models.whitening import whiten_stem

# Channels of the three stages, and how often the last of them is there.
FAST_NETS = {
    "fastnet-s": ((64, 128, 256), 1),
    "fastnet-m": ((96, 192, 384), 1),
    "fastnet-l": ((128, 256, 512), 1),
    "fastnet-experts": ((96, 192, 256), 3),
}
_PATCH = 2
_STEM = 2 * 3 * _PATCH * _PATCH  # both signs of every direction in a patch of three colours
# Features are maxima, and large: without this the first softmax would be nearly one-hot.
_LOGIT_SCALE = 0.25


class ConvNorm(nn.Module):
    """Convolution that starts as the identity (or at random), optional halving, normalisation, rectifier.

    (N, C, H, W) -> (N, channels, H, W), or (N, channels, H // 2, W // 2) where it halves.
    """

    def __init__(self, in_channels: int, channels: int, *, halve: bool = False, identity: bool = True) -> None:
        super().__init__()
        self.halve = halve
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        if identity:
            nn.init.dirac_(self.conv.weight.data[:in_channels])

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        x = self.conv(x)
        if self.halve:
            x = F.max_pool2d(x, 2)
        return F.relu(self.norm(x))


class Stage(nn.Module):
    """Halve the image, then add what two further convolutions see: (N, C, H, W) -> (N, channels, H // 2, W // 2)."""

    def __init__(self, in_channels: int, channels: int, *, identity: bool = True) -> None:
        super().__init__()
        self.down = ConvNorm(in_channels, channels, halve=True, identity=identity)
        self.conv1 = ConvNorm(channels, channels, identity=identity)
        self.conv2 = ConvNorm(channels, channels, identity=identity)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output."""
        x = self.down(x)
        return x + self.conv2(self.conv1(x))


class SideBySide(nn.ModuleList):
    """Modules that get the same input, their channels joined: (N, C, H, W) -> (N, sum of channels, H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what all of them make of `x`."""
        return torch.cat([module(x) for module in self], 1)


class FastNet(nn.Module):
    """Whitened stem, three stages, the largest answer of each channel, a scaled linear classifier; timm's interface.

    Args:
        widths: channels of the three stages.
        num_classes: K; 0 leaves out the classifier, so that the model returns features.
        experts: E, how often the last stage is there. More than one answer one by one while training: (N, E, K).
        drop_rate: dropout before the classifier.
    """

    smallest_image = 9  # below, nothing is left to halve a third time

    def __init__(
        self, widths: tuple[int, int, int], num_classes: int, *, experts: int = 1, drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.num_classes, self.experts, self.drop_rate = num_classes, experts, drop_rate
        self.num_features = self.head_hidden_size = widths[-1] * experts
        self.stem = nn.Conv2d(3, _STEM, _PATCH)
        first, second, last = widths
        self.stages = nn.Sequential(Stage(_STEM, first), Stage(first, second), _last_stage(second, last, experts))
        self.fc = self._classifier(num_classes)

    def whiten(self, images: Tensor) -> None:
        """Set the stem to whitening filters of training images (N, 3, H, W), normalised; it is not trained then."""
        whiten_stem(self.stem, images)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last feature map, (N, C, about H / 8, W / 8), of images (N, 3, H, W)."""
        if min(x.shape[-2:]) < self.smallest_image:
            raise ModelError(
                f"a fastnet needs images of {self.smallest_image} pixels or more, not {x.shape[-2]} x {x.shape[-1]}; "
                "set a larger data.image_size (or data.sizes)."
            )
        return self.stages(F.relu(self.stem(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool a feature map (N, C, H, W); return logits (N, K), or the features (N, C) with `pre_logits`."""
        # The classifier adds up what the experts say: a share each makes it their mean.
        scale = _LOGIT_SCALE / self.experts
        x = F.dropout(x.amax(dim=(2, 3)) * scale, self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, K) of images (N, 3, H, W); of experts in training (N, E, K)."""
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """Return the classifier, `fc`."""
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new linear classifier in place; 0 classes removes it."""
        like = next(self.parameters())
        self.num_classes = num_classes
        self.fc = self._classifier(num_classes).to(device=like.device, dtype=like.dtype)
        self.fc.train(self.training)

    def _classifier(self, num_classes: int) -> nn.Module:
        if not num_classes:
            return nn.Identity()
        if self.experts > 1:
            return ExpertLinear(self.num_features, num_classes, self.experts)
        return nn.Linear(self.num_features, num_classes, bias=False)


def _last_stage(in_channels: int, channels: int, experts: int) -> nn.Module:
    if experts == 1:
        return Stage(in_channels, channels)
    # At the identity all experts would start as the same one.
    return SideBySide(Stage(in_channels, channels, identity=False) for _ in range(experts))
