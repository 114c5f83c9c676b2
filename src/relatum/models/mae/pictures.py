"""What a masked autoencoder has learned, as a picture: original, masked, reconstruction."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Generator, Tensor

from relatum.errors import ModelError
from relatum.models.mae.model import MaskedAutoencoder
from relatum.models.mae.patches import masked_mse, patchify, psnr, to_pixels, unpatchify

_GREY = 0.5
_GAP, _MARGIN, _LINE, _LETTER = 4, 6, 14, 6.2  # pixels; the last two are a line and a letter of the font below
_TRUE_STATISTICS = (
    "The model predicts normalised patches; to show them, the mean and the contrast of each true patch were used, also "
    "of hidden ones: brightness and contrast come from the original, the structure from the model."
)


class Picture(NamedTuple):
    """A picture and what it shows.

    Attributes:
        image: a row per sample, columns original, masked, reconstruction; the caption is written below.
        caption: the same text.
    """

    image: Image.Image
    caption: str

    def save(self, path: str | Path) -> None:
        """Write a PNG file."""
        self.image.save(Path(path), format="PNG")


@torch.no_grad()
def reconstruction_picture(
    model: MaskedAutoencoder,
    images: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    seed: int = 0,
    side: int = 128,
) -> Picture:
    """Draw original | masked | reconstruction of some images, under the mask that belongs to `seed`.

    The reconstruction shows the prediction where a patch was hidden, and the true pixels elsewhere. The model runs in
    evaluation mode and is left in the mode it had.

    Args:
        model: the autoencoder.
        images: (N, 3, H, W), as the model sees them.
        mean: of each channel, on the scale 0 to 1, as in the preprocessing.
        std: of each channel, likewise.
        seed: of the mask: the same seed, the same patches, at every epoch and on every device.
        side: least height of one image in pixels; small ones are enlarged in whole steps.
    """
    if images.shape[1] != 3:
        raise ModelError(f"pictures need images with three channels, not {images.shape[1]}; none can be drawn.")
    images = images.to(next(model.parameters()).device)
    training = model.training
    try:
        output = model.eval()(images, Generator().manual_seed(seed))
    finally:
        model.train(training)
    hidden = output.mask.unsqueeze(-1)
    truth = to_pixels(patchify(images.float(), model.patch), mean, std)
    drawn = to_pixels(model.restore(output.prediction, images.float()), mean, std)
    panels = [truth, torch.where(hidden, _GREY, truth), torch.where(hidden, drawn, truth)]
    caption = _caption(model, masked_mse(drawn, truth, output.mask).mean(), seed)
    return Picture(_draw([unpatchify(panel, model.patch, model.grid) for panel in panels], caption, side), caption)


def _caption(model: MaskedAutoencoder, mse: Tensor, seed: int) -> str:
    first = (
        f"Original, masked ({model.mask}, {model.ratio:.0%} hidden, seed {seed}), reconstruction. "
        f"Hidden patches: MSE {float(mse):.4f}, PSNR {float(psnr(mse)):.1f} dB."
    )
    return f"{first} {_TRUE_STATISTICS}" if model.normalised else first


def _draw(panels: list[Tensor], caption: str, side: int) -> Image.Image:
    """Panels (N, 3, H, W) become columns, images become rows; the text goes below."""
    tiles = torch.stack(panels, dim=1).mul(255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).cpu().numpy()
    enlarge = max(1, -(-side // tiles.shape[2]))
    tiles = tiles.repeat(enlarge, axis=2).repeat(enlarge, axis=3)
    rows, columns, height, width, _ = tiles.shape
    total = columns * (width + _GAP) - _GAP
    lines = textwrap.wrap(caption, int((total - 2 * _MARGIN) / _LETTER))
    above = rows * (height + _GAP)
    canvas = np.full((above + len(lines) * _LINE + 2 * _MARGIN, total, 3), 255, dtype=np.uint8)
    for row, column in np.ndindex(rows, columns):
        top, left = row * (height + _GAP), column * (width + _GAP)
        canvas[top : top + height, left : left + width] = tiles[row, column]
    picture = Image.fromarray(canvas)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    for number, line in enumerate(lines):
        pen.text((_MARGIN, above + _MARGIN + number * _LINE), line, fill=(0, 0, 0), font=font)
    return picture
