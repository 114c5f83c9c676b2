"""NumPy arrays as pickles spell them, made from checked parts: NumPy itself never sees the file's own instructions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

_PLAIN_TYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")
_LATIN1 = ("latin1", "latin-1", "iso-8859-1")
_MOST_DIMENSIONS = 8


class Global(Enum):
    """What a pickle of arrays may name. None of them is the thing itself."""

    ARRAY = "ndarray"
    TYPE = "dtype"
    RECONSTRUCT = "_reconstruct"
    BUFFER = "_frombuffer"
    SCALAR = "scalar"
    ENCODE = "encode"


# Under the module names of old and new NumPy.
GLOBALS: dict[tuple[Any, Any], Global] = {
    (f"numpy.{core}.{module}", kind.value): kind
    for core in ("core", "_core")
    for module, kind in (
        ("multiarray", Global.RECONSTRUCT),
        ("multiarray", Global.SCALAR),
        ("numeric", Global.BUFFER),
    )
} | {
    ("numpy", "ndarray"): Global.ARRAY,
    ("numpy", "dtype"): Global.TYPE,
    ("_codecs", "encode"): Global.ENCODE,  # by which new Python writes bytes into old pickles
}


@dataclass
class PlainType:
    """The type of an array's numbers.

    Args:
        code: as NumPy writes it, for example "u1".
        order: byte order, set by the pickle in a second step.
    """

    code: str
    order: str = "|"

    def resolve(self) -> np.dtype[Any]:
        """Return NumPy's type."""
        kind = np.dtype(self.code)
        return kind if self.order == "|" else kind.newbyteorder(self.order)  # type: ignore[arg-type]


@dataclass
class Started:
    """An array whose content comes in a second step."""

    value: Any = field(default=None)

    def finished(self) -> Any:
        """Return the array."""
        if self.value is None:
            raise ValueError("an array is used before it is made")
        return self.value


def start(called: Any, arguments: Any) -> Any:
    """Do what a pickle means by calling `called`; only the spellings of arrays, types and byte strings have one."""
    if not isinstance(called, Global) or not isinstance(arguments, tuple):
        raise ValueError("the pickle calls what cannot be called")
    if called is Global.RECONSTRUCT and len(arguments) == 3 and arguments[0] is Global.ARRAY:
        return Started()
    if called is Global.TYPE and arguments:
        return PlainType(_type_code(arguments[0]))
    if called is Global.BUFFER and len(arguments) == 4:
        content, kind, shape, order = arguments
        return _array(shape, kind, order == "F", content)
    if called is Global.SCALAR and len(arguments) == 2:
        return _array((), arguments[0], False, arguments[1]).item()
    if called is Global.ENCODE and isinstance(arguments[0], str) and arguments[1:] in [(name,) for name in _LATIN1]:
        return arguments[0].encode("latin1")
    raise ValueError(f"{called.value} with other arguments than a table of arrays has")


def make(started: Any, state: Any) -> Any:
    """Do what a pickle means by setting the state of `started`."""
    if isinstance(started, PlainType) and isinstance(state, tuple) and len(state) >= 5:
        _, order, *structure = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in structure[:3]):
            raise ValueError("an array of structures, not of numbers")
        started.order = order
        return started
    if isinstance(started, Started) and isinstance(state, tuple) and len(state) == 5:
        _, shape, kind, by_columns, content = state
        started.value = _array(shape, kind, bool(by_columns), content)
        return started.value
    raise ValueError("the pickle changes what is no array")


def _type_code(code: Any) -> str:
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if not isinstance(text, str) or not _PLAIN_TYPE.fullmatch(text):
        raise ValueError(f"an array of {str(text)[:40]!r}, not of plain numbers")
    return text


def _array(shape: Any, kind: Any, by_columns: bool, content: Any) -> np.ndarray[Any, Any]:
    """Make an array that owns its memory; the content must be exactly as long as shape and type say."""
    data = content.encode("latin1") if isinstance(content, str) else content  # Python 2 had no bytes
    if not isinstance(kind, PlainType) or not isinstance(data, (bytes, bytearray)):
        raise ValueError("an array without type or content")
    sides = shape if isinstance(shape, tuple) else (shape,)
    if len(sides) > _MOST_DIMENSIONS or not all(type(side) is int and side >= 0 for side in sides):
        raise ValueError("an array without a proper shape")
    plain = kind.resolve()
    if math.prod(sides) * plain.itemsize != len(data):
        raise ValueError(f"an array of shape {sides} and type {plain} with {len(data):,} bytes")
    return np.frombuffer(data, plain).reshape(sides, order="F" if by_columns else "C").copy()
