"""Rooms whose name is also their door: `relatum.evaluate(...)` and `from relatum.evaluate import score` both work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A module that can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Go through the door."""
        return self.__dict__["_door"](*args, **kwargs)


def make_callable(room: str, door: Callable[..., Any]) -> None:
    """Let calling the module `room` call `door`."""
    module = sys.modules[room]
    module.__class__ = _Room
    module.__dict__["_door"] = door
