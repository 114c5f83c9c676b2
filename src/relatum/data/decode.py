"""Pixels from image files and from what a dataset hands over: (H, W, 3) uint8 RGB, or an error with a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from relatum.errors import DataError

_DEEP_GREY_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def decode_image(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read and decode an image file fully: (H, W, 3) uint8 RGB.

    The camera's rotation mark is obeyed, transparency is laid on white, 16-bit grey is scaled to 8 bits.

    Raises:
        DataError: the file is missing, truncated, or not an image; the message names it.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return to_rgb(image)
    except FileNotFoundError as error:
        raise DataError(f"image not found: {path}. Check the path, or the image root it is relative to.") from error
    except Exception as error:  # PIL's decoders raise whatever their format makes them raise
        raise DataError(f"cannot read image {path}: {error}. Replace the file or take it out of the data.") from error


def to_rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Turn a PIL image of any mode into (H, W, 3) uint8 RGB."""
    image = ImageOps.exif_transpose(image)
    if image.mode in _DEEP_GREY_MODES:
        image = _grey_from_16_bits(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range; store the image with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return np.array(image.convert("RGB"))


def _grey_from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise ValueError("pixels exceed 16 bits; store the image with 8 or 16 bits")
    return Image.fromarray((values / 257).round().astype(np.uint8))


def to_uint8(image: Any, where: str) -> npt.NDArray[np.uint8]:
    """Turn a PIL image, an array (H, W[, C]) or a tensor (C, H, W) into (H, W, 3) uint8; `where` names it in errors."""
    if isinstance(image, Image.Image):
        return _dataset_rgb(image, where)
    if hasattr(image, "detach"):  # a torch tensor, without importing torch for those who have none
        values = image.detach().cpu().numpy()
        if values.ndim != 3 or values.shape[0] not in (1, 3):
            raise DataError(f"{where}: a tensor image must be (3, H, W) or (1, H, W), not {values.shape}.")
        array = _from_unit_range(values, where).transpose(1, 2, 0)
    else:
        array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise DataError(
            f"{where}: an array image must be (H, W, 3) uint8, not {array.shape} {array.dtype}. "
            "Give 0 to 255 as uint8, channels last."
        )
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def _dataset_rgb(image: Image.Image, where: str) -> npt.NDArray[np.uint8]:
    try:
        return to_rgb(image)
    except (OSError, ValueError) as error:  # PIL decodes lazily: a broken file may show only here
        raise DataError(f"cannot read {where}: {error}. Replace the image or take it out of the data.") from error


def _from_unit_range(values: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    if values.dtype.kind != "f":
        return values
    if not np.all((values >= 0) & (values <= 1)):
        raise DataError(f"{where}: a float image must lie in [0, 1]; take Normalize out of the dataset's transform.")
    return (values.astype(np.float64) * 255).round().astype(np.uint8)
