"""The outlines of the shapes world: one signed distance function per class.

A form maps coordinates in the object's own frame, where the object fills about the unit disc, to a signed distance:
negative inside, zero on the outline. `f` in [0, 1) varies the proportions within a class. Arrays are (N, P) for N
objects and P points, `f` is (N, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from math import atan2, cos, hypot, pi, sin
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]  # float32 throughout; the stubs widen some sums with plain numbers
Form = Callable[[Array, Array, Array], Array]


def _box(x: Array, y: Array, half_x: Array | float, half_y: Array | float) -> Array:
    return np.maximum(np.abs(x) - half_x, np.abs(y) - half_y)


def _disc(x: Array, y: Array, radius: Array | float) -> Array:
    return np.hypot(x, y) - radius


def _sector_angle(x: Array, y: Array, n: int) -> Array:
    """Angle to the nearest of n equally spaced directions, the first of them up; in [0, pi / n]."""
    step = np.float32(2 * pi / n)
    return np.abs(np.mod(np.arctan2(x, -y) + step / 2, step) - step / 2)


def _polygon(n: int) -> Form:
    def form(x: Array, y: Array, f: Array) -> Array:
        radius = 1.25 - 0.05 * min(n, 5)  # few corners fill less of the disc: let them reach further
        angle = np.float32(pi / n) - _sector_angle(x, y, n)
        return np.hypot(x, y) * np.cos(angle) - np.float32(radius * cos(pi / n))

    return form


def _star(n: int) -> Form:
    def form(x: Array, y: Array, f: Array) -> Array:
        inner = 0.38 + 0.14 * f
        radius, angle = np.hypot(x, y), _sector_angle(x, y, n)
        tip_x, tip_y = radius * np.cos(angle) - 1.05, radius * np.sin(angle)
        edge_x, edge_y = inner * np.float32(cos(pi / n)) - 1.05, inner * np.float32(sin(pi / n))
        return (tip_x * edge_y - tip_y * edge_x) / np.hypot(edge_x, edge_y)

    return form


def _gear(n: int) -> Form:
    def form(x: Array, y: Array, f: Array) -> Array:
        teeth = np.clip(2.5 * np.cos(n * np.arctan2(y, x)), -1, 1)
        radius = np.hypot(x, y)
        return np.maximum(radius - 0.82 - (0.13 + 0.05 * f) * teeth, 0.26 - radius)

    return form


def _flower(n: int) -> Form:
    def form(x: Array, y: Array, f: Array) -> Array:
        return _disc(x, y, 0.76 + (0.18 + 0.08 * f) * np.cos(n * np.arctan2(y, x)))

    return form


def _button(holes: int) -> Form:
    def form(x: Array, y: Array, f: Array) -> Array:
        angle = _sector_angle(x, y, holes)
        radius = np.hypot(x, y)
        hole = np.hypot(radius * np.cos(angle) - 0.45, radius * np.sin(angle)) - (0.2 + 0.05 * f)
        return np.maximum(radius - 0.95, -hole)

    return form


def _pointed(x: Array, y: Array, centre: tuple[float, float], radius: float) -> Array:
    """Cone from the tip (0, -1) that touches the disc around `centre`; it ends where it touches."""
    away = hypot(centre[0], centre[1] + 1)
    half = atan2(centre[0], centre[1] + 1) + np.arcsin(radius / away)
    ends = -1 + np.sqrt(away**2 - radius**2) * cos(half)
    return np.maximum(np.abs(x) * np.float32(cos(half)) - (y + 1) * np.float32(sin(half)), y - np.float32(ends))


def _heart(x: Array, y: Array, f: Array) -> Array:
    y = -y  # the image's y points down, the heart's tip as well
    lobes = _disc(np.abs(x) - 0.45, y - 0.3, 0.52)
    return np.minimum(np.minimum(lobes, _pointed(x, y, (0.45, 0.3), 0.52)), _box(x, y - 0.1, 0.3, 0.3 - 0.1 * f))


def _drop(x: Array, y: Array, f: Array) -> Array:
    return np.minimum(_disc(x, y - 0.3, 0.65), _pointed(x, y, (0.0, 0.3), 0.65))


def _crescent(x: Array, y: Array, f: Array) -> Array:
    return np.maximum(_disc(x, y, 1.0), -_disc(x - 0.45 - 0.15 * f, y, 0.8))


def _half_disc(x: Array, y: Array, f: Array) -> Array:
    shift = 0.35 + 0.15 * f
    return np.maximum(_disc(x + shift, y, 1.05), -(x + shift))


def _arrow(x: Array, y: Array, f: Array) -> Array:
    head = np.maximum(-x, (np.abs(y) - (0.75 + 0.2 * f) * (1 - x)) * 0.75)
    return np.minimum(_box(x + 0.45, y, 0.55, 0.16 + 0.08 * f), head)


def _cross(x: Array, y: Array, f: Array) -> Array:
    arm = 0.2 + 0.12 * f
    return np.minimum(_box(x, y, 0.92, arm), _box(x, y, arm, 0.92))


def _ell(x: Array, y: Array, f: Array) -> Array:
    arm = 0.18 + 0.08 * f
    return np.minimum(_box(x + 0.4, y, arm, 0.9), _box(x - 0.08, y - 0.9 + arm, 0.66, arm))


def _tee(x: Array, y: Array, f: Array) -> Array:
    arm = 0.18 + 0.08 * f
    return np.minimum(_box(x, y + 0.7, 0.85, arm), _box(x, y - 0.1, arm, 0.8))


def _zee(x: Array, y: Array, f: Array) -> Array:
    bars = _box(x, np.abs(y) - 0.68, 0.75, 0.17 + 0.05 * f)
    return np.minimum(bars, np.maximum(np.abs(x + y) * 0.7 - 0.2, _box(x, y, 0.75, 0.7)))


def _cup(x: Array, y: Array, f: Array) -> Array:
    wall = 0.2 + 0.1 * f
    return np.maximum(_box(x, y, 0.8, 0.8), -_box(x, y + wall, 0.8 - wall, 0.8))


def _chevron(x: Array, y: Array, f: Array) -> Array:
    return np.maximum((np.abs(x + 0.8 * np.abs(y) - 0.3) - 0.3 - 0.08 * f) * 0.78, np.abs(y) - 0.9)


def _spiral(x: Array, y: Array, f: Array) -> Array:
    pitch = np.float32(0.62)
    turn = np.hypot(x, y) - pitch * np.arctan2(y, x) / np.float32(2 * pi)
    return np.maximum(np.abs(np.mod(turn, pitch) - pitch / 2) - 0.13 - 0.04 * f, np.hypot(x, y) - 1.05)


def _wedge(x: Array, y: Array, f: Array) -> Array:
    half = 0.45 + 0.3 * f
    return np.maximum(_disc(x, y, 0.98), x * np.sin(half) - np.abs(y) * np.cos(half))


def _house(x: Array, y: Array, f: Array) -> Array:
    roof = np.maximum(np.abs(x) * 0.73 - (y + 1) * 0.685, y + 0.15)
    return np.minimum(_box(x, y - 0.3, 0.58 + 0.12 * f, 0.55), roof)


def _dumbbell(x: Array, y: Array, f: Array) -> Array:
    return np.minimum(_disc(np.abs(x) - 0.6, y, 0.36 + 0.08 * f), _box(x, y, 0.6, 0.12))


# The order is the class order. A long tail cut from it has look-alikes on both ends: pentagon and hexagon, star-5 and
# star-6, square and diamond, ring and frame, cross and tee.
FORMS: dict[str, Form] = {
    "circle": lambda x, y, f: _disc(x, y, 0.92),
    "triangle": _polygon(3),
    "star-5": _star(5),
    "square": lambda x, y, f: _box(x, y, 0.76, 0.76),
    "cross": _cross,
    "crescent": _crescent,
    "pentagon": _polygon(5),
    "ring": lambda x, y, f: np.abs(_disc(x, y, 0.72)) - 0.14 - 0.1 * f,
    "heart": _heart,
    "arrow": _arrow,
    "ell": _ell,
    "gear-8": _gear(8),
    "hexagon": _polygon(6),
    "star-6": _star(6),
    "diamond": lambda x, y, f: (np.abs(x) * (0.5 + 0.15 * f) + np.abs(y) - 0.52 - 0.15 * f) * 0.86,
    "tee": _tee,
    "drop": _drop,
    "frame": lambda x, y, f: np.abs(_box(x, y, 0.66, 0.66)) - 0.12 - 0.08 * f,
    "half-disc": _half_disc,
    "flower-5": _flower(5),
    "heptagon": _polygon(7),
    "star-4": _star(4),
    "star-7": _star(7),
    "spiral": _spiral,
    "hourglass": lambda x, y, f: np.maximum((np.abs(x) - np.abs(y) * 0.8 - 0.08 - 0.1 * f) * 0.78, np.abs(y) - 0.85),
    "chevron": _chevron,
    "wedge": _wedge,
    "lens": lambda x, y, f: _disc(x, np.abs(y) + 0.6 + 0.1 * f, 1.15),
    "zee": _zee,
    "trapezoid": lambda x, y, f: np.maximum(np.abs(y) - 0.6, (np.abs(x) - 0.66 - (0.25 + 0.1 * f) * y) * 0.95),
    "house": _house,
    "cup": _cup,
    "dumbbell": _dumbbell,
    "button-2": _button(2),
    "button-4": _button(4),
    "flower-7": _flower(7),
}
