"""Pickles of plain tables, read by a small machine that can do nothing else.

CIFAR comes as pickles, and a pickle is a program. The usual reader imports what the program names and calls it, even if
it is held to a list of allowed names. This one knows the steps that build dictionaries, lists, strings, numbers and
plain NumPy arrays. It imports nothing and calls nothing of the file's choice: any other step is refused by name. What
it builds is a tree, so that a small file cannot grow into a large structure by referring to its own parts.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relatum.data.pickled_arrays import GLOBALS, Started, make, start
from relatum.errors import DataError

LARGEST_FILE = 2**30  # the largest CIFAR file has 155 MB
_NEWEST_PROTOCOL = 5
_MARK = object()


def load_pickle(path: str | Path) -> Any:
    """Read a pickle of plain containers, strings, numbers and NumPy arrays; anything else in the file is refused.

    Raises:
        DataError: no such file, too large, damaged, or not plain data. Nothing in the file has run then.
    """
    path = Path(path)
    try:
        return _Machine().run(_content(path))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        words = str(error) or type(error).__name__
        raise DataError(f"cannot read {path}: {words[:200]}. Unpack the CIFAR archive again.") from error


def _content(path: Path) -> bytes:
    if not path.is_file():  # a pipe would make us wait for ever
        raise DataError("no such file, or not a regular one; unpack the CIFAR archive again.")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise DataError(f"{size:,} bytes are more than any CIFAR file has; get it from its official source.")
    return path.read_bytes()


class _Machine:
    """The stack and the memo of a pickle, without the steps that name, make or call things."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            step = _STEPS.get(opcode.name)
            if step is None:
                named = f" ({argument[:80]!r})" if isinstance(argument, str) else ""
                raise DataError(
                    f"the pickle has the step {opcode.name}{named}, which is not data; refused, since it could run "
                    "code. Get the file from its official source."
                )
            step(self, argument)
        (result,) = self.stack  # the last step is STOP; it leaves one value
        return result

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a value is missing on the stack")
        return value

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        value = self.memo[index]
        if isinstance(value, Started):
            value = value.finished()
        small = isinstance(value, tuple) and len(value) <= 8 and all(isinstance(part, int) for part in value)
        if isinstance(value, (list, dict, tuple)) and not small:
            raise DataError("the pickle refers to its own lists, which no CIFAR file does; refused.")
        self.push(value)

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("values are added to what is no list")
        self.stack[-1].extend(values)

    def update(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("values are set in what is no dictionary")
        self.stack[-1].update(_pairs(values))

    def name(self, module: Any, name: Any) -> None:
        if (module, name) not in GLOBALS:
            raise DataError(
                f"the pickle asks for {module}.{name}, which is not data; refused, since it could run code. "
                "Get the file from its official source."
            )
        self.push(GLOBALS[module, name])

    def reduce(self) -> None:
        arguments, called = self.pop(), self.pop()
        self.push(start(called, arguments))

    def build(self) -> None:
        state, started = self.pop(), self.pop()
        self.push(make(started, state))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    keys = values[::2]
    # Hashing a tuple that is nested a million times would overflow the interpreter's own stack.
    if len(values) % 2 or not all(isinstance(key, (str, bytes, int)) for key in keys):
        raise ValueError("a key is neither a string nor a number")
    return dict(zip(keys, values[1::2], strict=True))


def _swapped(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _protocol(_: _Machine, number: int) -> None:
    if number > _NEWEST_PROTOCOL:
        raise ValueError(f"pickle protocol {number} is unknown")


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _: Any) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(values)))

    return step


_VALUES = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_VALUES, _Machine.push),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    **{f"TUPLE{count}": _tuple_of(count) for count in (1, 2, 3)},
    "PROTO": _protocol,
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(_MARK),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "DICT": lambda machine, _: machine.push(_pairs(machine.since_mark())),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.update([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.update(machine.since_mark()),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": _swapped,
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}
