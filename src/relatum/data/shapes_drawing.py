"""Drawing of the shapes world: many objects at once, each from its own row of parameters.

Layers (colour and opacity of an object) and backgrounds are separate, so that several objects can share a scene.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from relatum.data.shapes_forms import FORMS, Array

NAMES: tuple[str, ...] = tuple(FORMS)
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.95, 0.25, 0.2),
    "orange": (1.0, 0.58, 0.15),
    "yellow": (0.95, 0.88, 0.25),
    "green": (0.3, 0.8, 0.3),
    "cyan": (0.25, 0.85, 0.85),
    "blue": (0.3, 0.5, 1.0),
    "violet": (0.7, 0.4, 0.95),
    "pink": (1.0, 0.55, 0.8),
}
MATERIALS = ("flat", "stripes", "dots", "noise", "gradient")
STYLES = ("filled", "outline", "sketchy", "inverted", "low-contrast")
_CHUNK = 64  # objects drawn together: their arrays then fit into the processor's cache
_DISTRACTORS = 3
_NOISE = 0.03
_PALETTE = np.array(list(COLOURS.values()), dtype=np.float32)


@dataclass(frozen=True)
class ShapeParams:
    """What is drawn, one row per object; all arrays are (N,).

    Args:
        shape: class id, position in `NAMES`.
        colour: position in `COLOURS`.
        material: position in `MATERIALS`.
        style: position in `STYLES`.
        x: centre from the left edge, in image sides.
        y: centre from the top edge, in image sides.
        size: radius in image sides.
        angle: rotation in radians.
        form: proportions within the class, in [0, 1).
        key: uint64 from which texture phases, background and pixel noise follow.
    """

    shape: npt.NDArray[np.int64]
    colour: npt.NDArray[np.int64]
    material: npt.NDArray[np.int64]
    style: npt.NDArray[np.int64]
    x: Array
    y: Array
    size: Array
    angle: Array
    form: Array
    key: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.shape)

    def take(self, rows: npt.NDArray[np.int64] | slice) -> ShapeParams:
        """Return the chosen rows."""
        return ShapeParams(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit numbers, one to one, so that neighbours become unrelated."""
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


def uniform(key: npt.NDArray[np.uint64], slot: int, low: float = 0.0, high: float = 1.0) -> Array:
    """Draw one number in [low, high) per key, (N,) float32; each `slot` is an independent stream."""
    stream = np.uint64((slot + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = mix(key + stream) >> np.uint64(40)
    return np.float32(low) + bits.astype(np.float32) * np.float32((high - low) / 2**24)


def draw_objects(params: ShapeParams, image_size: int = 32) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Draw each object on a background of its own.

    Args:
        params: N objects.
        image_size: S, side of the images.

    Returns:
        images (N, S, S, 3) uint8 and masks (N, S, S), true where the object is.
    """
    images = np.empty((len(params), image_size, image_size, 3), dtype=np.uint8)
    masks = np.empty((len(params), image_size, image_size), dtype=np.bool_)
    for start in range(0, len(params), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = params.take(rows)
        colour, alpha, masks[rows] = draw_layers(part, image_size)
        back = draw_backgrounds(part.key, part.style == STYLES.index("inverted"), image_size)
        images[rows] = finish(back + (colour - back) * alpha[..., None], part.key)
    return images, masks


def draw_layers(params: ShapeParams, image_size: int) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Return colour (N, S, S, 3) and opacity (N, S, S) in [0, 1], and the mask (N, S, S), of each object."""
    x, y = _own_frame(params, image_size)
    pixel = (1 / (image_size * params.size))[:, None]
    form = params.form[:, None]
    distance = np.empty_like(x)
    for shape in np.unique(params.shape):
        rows = np.flatnonzero(params.shape == shape)
        distance[rows] = FORMS[NAMES[shape]](x[rows], y[rows], form[rows])
    alpha = _styled(distance, x, y, pixel, params)
    shade = _textured(x, y, params)
    tint = _PALETTE[params.colour] + np.stack([uniform(params.key, 20 + c, -0.12, 0.12) for c in range(3)], axis=1)
    tint = np.where((params.style == STYLES.index("inverted"))[:, None], tint * np.float32(0.55), tint)
    grid = (len(params), image_size, image_size)
    colour = np.clip(shade[..., None] * tint[:, None, :], 0, 1).reshape(*grid, 3)
    return colour, alpha.reshape(grid), (distance < 0).reshape(grid)


def draw_backgrounds(key: npt.NDArray[np.uint64], light: npt.NDArray[np.bool_], image_size: int) -> Array:
    """Draw cluttered grounds (N, S, S, 3) in [0, 1], light or dark: clouds of colour and distractor blobs."""
    x, y = (axis.reshape(1, -1) for axis in _grid(image_size))
    base = np.stack([uniform(key, 30 + c, 0.08, 0.3) for c in range(3)], axis=1)
    ground = np.repeat(base[:, None, :], x.shape[1], axis=1)
    for wave in range(3):
        turn, phase = uniform(key, 40 + wave, 0, 6.2832), uniform(key, 44 + wave, 0, 6.2832)
        pitch = uniform(key, 48 + wave, 3, 16)
        along = x * (pitch * np.cos(turn))[:, None] + y * (pitch * np.sin(turn))[:, None]
        ground[:, :, wave] += np.float32(0.05) * np.sin(along + phase[:, None])
    for blob in range(_DISTRACTORS):
        slot = 60 + 10 * blob
        alpha = _blob(x, y, key, slot)
        paint = np.stack([uniform(key, slot + 6 + c, 0.1, 0.6) for c in range(3)], axis=1)
        ground += (paint[:, None, :] - ground) * alpha[..., None]
    ground = np.where(light[:, None, None], 1 - ground, ground)
    return ground.reshape(len(key), image_size, image_size, 3)


def finish(images: Array, key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Add pixel noise to images (N, S, S, 3) in [0, 1] and round to uint8."""
    values = images.reshape(len(key), -1)
    noisy = values + np.float32(_NOISE) * _bell(key, values.shape[1])
    return (np.clip(noisy, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8).reshape(images.shape)


def _grid(image_size: int) -> tuple[Array, Array]:
    centres = (np.arange(image_size, dtype=np.float32) + 0.5) / np.float32(image_size)
    y, x = np.meshgrid(centres, centres, indexing="ij")
    return x, y


def _own_frame(params: ShapeParams, image_size: int) -> tuple[Array, Array]:
    grid_x, grid_y = (axis.reshape(1, -1) for axis in _grid(image_size))
    right, down = grid_x - params.x[:, None], grid_y - params.y[:, None]
    across, along = (np.cos(params.angle) / params.size)[:, None], (np.sin(params.angle) / params.size)[:, None]
    return right * across + down * along, down * across - right * along


def _styled(distance: Array, x: Array, y: Array, pixel: Array, params: ShapeParams) -> Array:
    """Opacity (N, P) of each object in its drawing style."""
    alpha = np.clip(0.5 - distance / pixel, 0, 1)
    for style in np.unique(params.style):
        rows = np.flatnonzero(params.style == style)
        key, d, wide = params.key[rows], distance[rows], pixel[rows]
        if STYLES[style] == "outline":
            pen = np.maximum(np.float32(0.09), np.float32(0.6) * wide)
            # A faint filling tells an outlined circle from a ring.
            alpha[rows] = np.maximum(np.clip(0.5 - (np.abs(d + pen) - pen) / wide, 0, 1), np.float32(0.3) * alpha[rows])
        elif STYLES[style] == "sketchy":
            wobble = _waves(x[rows], y[rows], key, 100, 5.0) + _waves(y[rows], x[rows], key, 104, 9.0)
            hatch = _waves(x[rows], y[rows], key, 108, 14.0)
            ink = np.clip(0.5 - (d + np.float32(0.05) * wobble) / wide, 0, 1)
            alpha[rows] = ink * np.clip(0.75 + hatch, 0.35, 1)
        elif STYLES[style] == "low-contrast":
            alpha[rows] *= np.float32(0.6)
    return alpha


def _textured(x: Array, y: Array, params: ShapeParams) -> Array:
    """Brightness (N, P) in [0.4, 1] of each object's material."""
    shade = np.ones_like(x)
    for material in np.unique(params.material):
        rows = np.flatnonzero(params.material == material)
        key, px, py = params.key[rows], x[rows], y[rows]
        if MATERIALS[material] == "stripes":
            shade[rows] = 0.78 + np.clip(1.5 * _waves(px, py, key, 112, 11.0), -0.22, 0.22)
        elif MATERIALS[material] == "dots":
            shade[rows] = 1 - np.clip(
                4 * (_waves(px, py, key, 112, 7.0) * _waves(-py, px, key, 112, 7.0) - 0.2), 0, 0.45
            )
        elif MATERIALS[material] == "noise":
            shade[rows] = np.clip(0.72 + 0.16 * _bell(mix(key), px.shape[1]), 0.4, 1)
        elif MATERIALS[material] == "gradient":
            turn = uniform(key, 116, 0, 6.2832)[:, None]
            shade[rows] = np.clip(0.7 + 0.35 * (px * np.cos(turn) + py * np.sin(turn)), 0.4, 1)
    return shade.astype(np.float32, copy=False)


def _waves(x: Array, y: Array, key: npt.NDArray[np.uint64], slot: int, pitch: float) -> Array:
    turn, phase = uniform(key, slot, 0, 6.2832)[:, None], uniform(key, slot + 1, 0, 6.2832)[:, None]
    return np.sin(np.float32(pitch) * (x * np.cos(turn) + y * np.sin(turn)) + phase)


def _blob(x: Array, y: Array, key: npt.NDArray[np.uint64], slot: int) -> Array:
    """Opacity (N, P) of one distractor: a small soft ellipse anywhere in the image."""
    right, down = x - uniform(key, slot)[:, None], y - uniform(key, slot + 1)[:, None]
    turn = uniform(key, slot + 2, 0, 3.1416)[:, None]
    long, short = uniform(key, slot + 3, 0.05, 0.2)[:, None], uniform(key, slot + 4, 0.03, 0.08)[:, None]
    across = (right * np.cos(turn) + down * np.sin(turn)) / long
    along = (down * np.cos(turn) - right * np.sin(turn)) / short
    return np.clip(2 - 2 * (across**2 + along**2), 0, 0.9).astype(np.float32, copy=False)


def _bell(key: npt.NDArray[np.uint64], count: int) -> Array:
    """Bell-shaped noise (N, count) of mean 0 and deviation 1: the sum of the four bytes of a scrambled number."""
    seeds = (mix(key) & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    value = (np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1))[None, :] + seeds
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x7FEB352D)
    value = (value ^ (value >> np.uint32(15))) * np.uint32(0x846CA68B)
    value ^= value >> np.uint32(16)
    total = value.view(np.uint8).reshape(len(key), count, 4).sum(axis=2, dtype=np.uint16)
    return (total.astype(np.float32) - np.float32(510)) * np.float32(1 / 147.8)
