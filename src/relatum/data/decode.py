"""Pixels from image files and from what a dataset hands over: (H, W, 3) uint8 RGB, or an error with a name."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from relatum.data.files import open_regular, opening_problem, shown
from relatum.errors import DataError

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""What is read, whatever a file is called. PIL knows more; some of it runs other programs (EPS)."""
PIXEL_LIMIT = 89_478_485
"""Largest number of pixels, the size above which PIL warns; it is checked before any memory is taken for them."""
ASPECT_LIMIT = 1000
"""Largest ratio of the sides: a strip one pixel wide would become gigabytes when its short side is enlarged."""
_DEEP_GREY_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")
# Troubles of the machine: an image must not be called bad for them.
_OTHERS_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ImageError(DataError):
    """An image that cannot be read; the message names it.

    Attributes:
        reason: why, in a few words.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


def decode_image(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read and decode an image file fully: (H, W, 3) uint8 RGB.

    The camera's rotation mark is obeyed, transparency is laid on white, 16-bit grey is scaled to 8 bits, and of an
    animation the first picture is taken.

    Raises:
        ImageError: the file is missing, truncated, not an image, or too large to be one; the message names it.
    """
    try:
        with open_regular(path) as file, opened_image(file) as image:
            return to_rgb(image)
    except Exception as error:  # PIL's decoders raise whatever their format makes them raise
        reason = image_problem(error, path)
        if isinstance(error, FileNotFoundError) and reason == "file not found":
            words = f"image not found: {shown(path)}. Check the path, or the image root it is relative to."
        else:
            words = f"cannot read image {shown(path)}: {reason}. Replace the file or take it out of the data."
        raise ImageError(words, reason) from error


@contextmanager
def opened_image(file: BinaryIO) -> Iterator[Image.Image]:
    """Give the first picture of an image file, decoded; its size is checked before it is."""
    if not file.read(1):
        raise ValueError("empty file (0 bytes)")
    file.seek(0)
    with Image.open(file, formats=FORMATS) as image:
        width, height = image.size
        if width * height > PIXEL_LIMIT:
            raise Image.DecompressionBombError
        if max(width, height) > ASPECT_LIMIT * min(width, height):
            raise ValueError(f"{width}x{height} pixels: one side is more than {ASPECT_LIMIT:,} times the other")
        image.load()
        yield image


def image_problem(error: Exception, path: str | Path) -> str:
    """Say in a few words why an image cannot be read; a trouble that is not the file's is raised again."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OTHERS_FAULT):
        raise error
    if isinstance(error, UnidentifiedImageError):  # its own message names an object in memory, which helps nobody
        return "not an image in a known format"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"it claims more than {PIXEL_LIMIT:,} pixels (a decompression bomb?)"
    if isinstance(error, OSError) and (error.errno is not None or error.strerror):
        return opening_problem(error, path)
    return shown(str(error) or type(error).__name__)


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
    except Exception as error:  # PIL decodes lazily: a broken file may show only here, as whatever its format raises
        reason = image_problem(error, "")
        raise ImageError(
            f"cannot read {where}: {reason}. Replace the image or take it out of the data.", reason
        ) from error


def _from_unit_range(values: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    if values.dtype.kind != "f":
        return values
    if not np.all((values >= 0) & (values <= 1)):
        raise DataError(f"{where}: a float image must lie in [0, 1]; take Normalize out of the dataset's transform.")
    return (values.astype(np.float64) * 255).round().astype(np.uint8)
