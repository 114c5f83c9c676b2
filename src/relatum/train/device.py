"""Where and in which precision to compute."""

from __future__ import annotations

import contextlib
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
    if name not in ("auto", "measure"):
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    native = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if native else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass in `precision`."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
