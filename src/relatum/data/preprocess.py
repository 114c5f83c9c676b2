"""What every image goes through at evaluation, prediction and export: resize, centre crop, normalise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from relatum.config import DataConfig
from relatum.errors import ConfigError, DataError

Channels = tuple[float, float, float]

NORMALISE: dict[str, tuple[Channels, Channels]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    # Of the training images of LiVT, as its code has them.
    "imagenet-lt": ((0.479672, 0.457713, 0.407721), (0.278976, 0.271203, 0.286062)),
    "imagenet-bal": ((0.480767, 0.457071, 0.407718), (0.279940, 0.272481, 0.286038)),
    "inaturalist18": ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),
}

# Up to this side, images are shown whole; above, the usual margin is cut off at evaluation.
SMALL_IMAGE = 96


def normalise(images: Tensor, mean: Channels, std: Channels) -> Tensor:
    """Turn uint8 images (..., 3, H, W) into float32: pixel / 255, minus `mean`, over `std`, channel by channel."""
    centre = torch.tensor(mean, dtype=torch.float64).mul(255).float().view(3, 1, 1)
    scale = torch.tensor(std, dtype=torch.float64).mul(255).reciprocal().float().view(3, 1, 1)
    return images.to(torch.float32).sub_(centre).mul_(scale)


def to_tensor(image: npt.NDArray[np.uint8]) -> Tensor:
    """Turn an image (H, W, 3) uint8 into a tensor (3, H, W) of the same memory where that is possible."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise DataError(f"an image must be (H, W, 3) uint8, not {image.shape} {image.dtype}; convert it to RGB first.")
    return torch.from_numpy(np.require(image, requirements=["C", "W"])).permute(2, 0, 1)


def fit_square(image: Tensor, size: int, resize: int) -> Tensor:
    """Bring (3, H, W) uint8 to (3, size, size): shorter side to `resize` (antialiased bilinear), then centre crop.

    An image that has the size already stays as it is.
    """
    h, w = image.shape[-2:]
    if h == w == size:
        return image
    short = min(h, w)
    if short != resize:
        h, w = (int(resize * side / short) for side in (h, w))
        image = functional.interpolate(image.unsqueeze(0), (h, w), mode="bilinear", antialias=True).squeeze(0)
    top, left = round((h - size) / 2), round((w - size) / 2)
    return image[:, top : top + size, left : left + size]


@dataclass(frozen=True)
class Preprocess:
    """Evaluation-time preprocessing; kept in the checkpoint, so that predictions see what the scores saw.

    Args:
        image_size: side S of the square image the model sees.
        resize: shorter side before the centre crop; at least `image_size`.
        mean: of each channel, on the scale 0 to 1.
        std: of each channel, on the scale 0 to 1.
    """

    image_size: int
    resize: int
    mean: Channels
    std: Channels

    def __post_init__(self) -> None:
        if self.image_size < 1 or self.resize < self.image_size:
            raise ConfigError(
                f"resize ({self.resize}) must be at least image_size ({self.image_size}); "
                "set data.resize to 0 for the default or to a larger side."
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ConfigError("mean and std need three numbers each, std above 0.")

    @classmethod
    def from_config(cls, config: DataConfig) -> Preprocess:
        """Build from the data settings; `resize` 0 becomes the size of small images, or size / 0.875."""
        size = config.image_size
        resize = config.resize or (size if size <= SMALL_IMAGE else round(size / 0.875))
        return cls(size, resize, *NORMALISE[config.normalise])

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists, for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocess:
        """Rebuild from `to_dict`."""
        try:
            mean, std = (tuple(float(v) for v in values[key]) for key in ("mean", "std"))
            return cls(int(values["image_size"]), int(values["resize"]), mean, std)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"preprocessing record is not valid ({error!r}); it needs image_size, resize, mean, std."
            ) from error

    def fit(self, image: npt.NDArray[np.uint8]) -> Tensor:
        """Resize and crop only: (H, W, 3) uint8 to (3, S, S) uint8."""
        return fit_square(to_tensor(image), self.image_size, self.resize)

    def normalise(self, images: Tensor) -> Tensor:
        """Turn uint8 (..., 3, S, S) into the float32 values the model sees."""
        return normalise(images, self.mean, self.std)

    def __call__(self, image: npt.NDArray[np.uint8]) -> Tensor:
        """Turn an image (H, W, 3) uint8 into (3, S, S) float32."""
        return self.normalise(self.fit(image)).contiguous()
