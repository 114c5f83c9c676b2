"""Is an error a lack of memory? Python, torch on a CPU and torch on an accelerator each say it in another way.

Imports nothing heavy: the command line asks this of errors that come before torch is loaded.
"""

from __future__ import annotations

import errno

# What torch says where it has no class of its own: CPU on Linux and macOS, CPU on Windows, cuBLAS, MPS.
_WORDS = ("can't allocate memory", "DefaultCPUAllocator", "ALLOC_FAILED", "backend out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in the process or on the accelerator."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    return isinstance(error, MemoryError) or named or said
