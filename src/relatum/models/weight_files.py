"""From a weights file to named tensors. The file may come from anywhere: whatever is in it, nothing of it runs."""

from __future__ import annotations

import pickle
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from relatum.errors import ModelError

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "weights")
_DEEPEST_WRAPPER = 8  # a table may hold itself
_LARGEST_GROWTH = 4  # torch does not compress; a file that unpacks to much more than its size is made to fill memory
_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    torch.bool,
)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a torch file that holds nothing but tensors.

    Raises:
        ModelError: no such file, not a regular one, unreadable, or refused for holding more than plain tensors.
    """
    _require_file(path)
    if path.suffix == ".safetensors":
        return _checked(_read_safetensors(path), path)
    if path.suffix in TORCH_SUFFIXES:
        return _checked(_unwrap(_read_torch(path), path), path)
    if path.suffix == ".t7":
        raise ModelError(
            f"'{path}' is a file of Lua Torch, which is not read; convert it where it was made, and save safetensors."
        )
    raise ModelError(
        f"'{path}' has an unknown ending; weights are read from .safetensors, {', '.join(TORCH_SUFFIXES)}."
    )


def _require_file(path: Path) -> None:
    """Look before opening: to open a pipe is to wait for whoever writes into it."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelError(f"weights file '{path}' does not exist; give the path of a local file.") from error
    except OSError as error:
        raise ModelError(f"weights file '{path}' cannot be read: {error.strerror}.") from error
    if stat.S_ISDIR(found.st_mode):
        raise ModelError(f"'{path}' is a folder; give the weights file in it.")
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"'{path}' is a pipe or a device; give a regular file.")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # a header made to mislead can raise more than SafetensorError
        raise ModelError(f"'{path}' is not a readable safetensors file ({_brief(error)}); fetch it again.") from error


def _read_torch(path: Path) -> Any:
    try:
        _refuse_bomb(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except ModelError:
        raise
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"'{path}' was refused: it is damaged, or holds more than tensors and could run code. "
            f"Where you trust its origin, load it there and save model.state_dict() as .safetensors. ({_brief(error)})"
        ) from error
    except Exception as error:  # a damaged file can raise nearly anything
        raise ModelError(f"'{path}' is not a readable torch file ({_brief(error)}); fetch it again.") from error


def _refuse_bomb(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _LARGEST_GROWTH * size + 2**20:
        raise ModelError(
            f"'{path}' was refused: its {size:,} bytes unpack to {unpacked:,}, which torch does not write. "
            "Load it where you trust it and save model.state_dict() as .safetensors."
        )


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(_DEEPEST_WRAPPER):
        if not isinstance(content, Mapping) or any(isinstance(v, Tensor) for v in content.values()):
            break
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    tensors = content if isinstance(content, Mapping) else {}
    if not tensors or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tensors.items()):
        raise ModelError(f"'{path}' holds no table of tensors; save model.state_dict() and load that.")
    return dict(tensors)


def _checked(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Refuse what is no plain block of numbers; it would fail later, in the middle of filling a model."""
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.dtype not in _TYPES:
            kind = f"{tensor.device.type}, {tensor.layout}, {tensor.dtype}"
            raise ModelError(f"'{path}': '{name[:80]}' is no plain tensor of numbers ({kind}); save it as one.")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ModelError(
                f"'{path}': '{name[:80]}' claims shape {tuple(tensor.shape)}, more values than the file has; save "
                "tensor.contiguous()."
            )
    return tensors


def _brief(error: Exception) -> str:
    """The first line of what torch says; the rest advises to trust the file."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
