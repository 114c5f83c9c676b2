"""Weights from a local file. Nothing in the file can run code."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from relatum.errors import ModelError
from relatum.models.find import find_classifier
from relatum.models.weight_files import read_weights

_PREFIXES = ("module.", "_orig_mod.", "model.")


def load_weights(model: nn.Module, path: str | Path, *, strict: bool = True) -> tuple[str, ...]:
    """Load weights into `model`, in place; on any error the model is left as it was.

    Wrappers such as `{"state_dict": …}` and prefixes such as `module.` are taken off. A classifier made for other
    classes (another shape than the model's) stays out with a warning, so that a pretrained file can start a new task.

    Args:
        model: the model to fill.
        path: .safetensors, or .pt, .pth, .bin, .ckpt, .tar written by torch.
        strict: refuse a file with missing or superfluous tensors; otherwise they are listed in a warning.

    Returns:
        The names in the file that were left out.

    Raises:
        ModelError: no such file, unreadable, refused for holding Python objects, or not fitting.
    """
    path = Path(path)
    found = strip_prefixes(read_weights(path), model)
    left_out = _foreign_heads(model, found)
    if left_out:
        warnings.warn(
            f"{path.name}: the classifier ({', '.join(left_out)}) is not of this model's shape and was left out; "
            "it starts from random weights.",
            stacklevel=2,
        )
    kept = {key: value for key, value in found.items() if key not in left_out}
    _check_fit(model, kept, left_out, path, strict)
    model.load_state_dict(kept, strict=False)
    return left_out


def strip_prefixes(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return `tensors` without the prefixes that compiled or parallel wrappers put before every name."""
    own = model.state_dict().keys()
    for prefix in [p for p in _PREFIXES for _ in range(2)]:  # twice: a compiled model inside a parallel one, or reverse
        foreign = not any(key.startswith(prefix) for key in own)
        if foreign and tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _foreign_heads(model: nn.Module, tensors: dict[str, Tensor]) -> tuple[str, ...]:
    try:
        heads = find_classifier(model)
    except ModelError:  # a model without a classifier takes the file as it is
        return ()
    names: list[str] = []
    for name, head in heads:
        want = {f"{name}.{key}": value.shape for key, value in head.state_dict().items()}
        have = {key: value.shape for key, value in tensors.items() if key.startswith(f"{name}.")}
        if have and have != want:
            names += have
    return tuple(names)


def _check_fit(model: nn.Module, tensors: dict[str, Tensor], left_out: Iterable[str], path: Path, strict: bool) -> None:
    own = model.state_dict()
    heads = {key.rpartition(".")[0] for key in left_out}
    shapes = [
        f"{key} {tuple(value.shape)} in the file, {tuple(own[key].shape)} in the model"
        for key, value in tensors.items()
        if key in own and own[key].shape != value.shape
    ]
    missing = [key for key in own if key not in tensors and key.rpartition(".")[0] not in heads]
    unexpected = [key for key in tensors if key not in own]
    faults = [
        f"{label}: {_some(names)}" for label, names in (("missing", missing), ("unexpected", unexpected)) if names
    ]
    if shapes:
        raise ModelError(
            f"'{path}' does not fit {type(model).__name__}: other shapes: {_some(shapes)}. Is it this model?"
        )
    if faults and (strict or len(unexpected) == len(tensors)):
        raise ModelError(f"'{path}' does not fit {type(model).__name__}: {'; '.join(faults)}. Is it this model?")
    if faults:
        warnings.warn(f"{path.name} fits {type(model).__name__} in part: {'; '.join(faults)}.", stacklevel=3)


def list_faults(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], limit: int = 5) -> str:
    """Say what of `wanted` is missing in `found`, what is superfluous, what has another shape; empty if all fits.

    Args:
        found: tensors of a file.
        wanted: tensors of a model.
        limit: names to list of each kind.
    """
    shapes = [
        f"{key} {tuple(found[key].shape)} in the file, {tuple(value.shape)} in the model"
        for key, value in wanted.items()
        if key in found and found[key].shape != value.shape
    ]
    faults = {
        "missing": [key for key in wanted if key not in found],
        "unexpected": [key for key in found if key not in wanted],
        "other shapes": shapes,
    }
    return "; ".join(f"{fault}: {_some(names, limit)}" for fault, names in faults.items() if names)


def _some(names: list[str], limit: int = 10) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
