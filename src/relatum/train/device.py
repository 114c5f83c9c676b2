"""Where and in which precision to compute."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch

from relatum.errors import ConfigError
from relatum.processes import local_rank, world


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" takes CUDA, then MPS, then the CPU.

    Of several processes on a machine, each gets a GPU of its own.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and world() > 1:
        name = f"cuda:{local_rank()}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{name}'; valid: auto, cpu, cuda, cuda:1, mps.") from error
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, False):
        raise ConfigError(f"device '{name}' is not available here; use --train.device auto.")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Resolve "auto": bfloat16 on CUDA and CPUs that compute in it natively, float32 elsewhere.

    "measure" starts from the same rule; `relatum.train.choose` measures.
    """
    if name == "bfloat16" and device.type == "cpu" and not multiplies_in_bfloat16(device):
        warnings.warn(
            "precision bfloat16: this processor does not multiply in bfloat16 and has to imitate it, which takes ten "
            "times as long and more; set --train.precision auto, which takes float32 here.",
            stacklevel=2,
        )
    if name not in ("auto", "measure"):
        return name
    return "bfloat16" if multiplies_in_bfloat16(device) else "float32"


def multiplies_in_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bfloat16 instead of imitating it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass in `precision`."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
