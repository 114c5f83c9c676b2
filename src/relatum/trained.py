"""Use what a run left behind: the plain model, its class names, its preprocessing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from relatum.config import ModelConfig
from relatum.config_files import from_dict
from relatum.data.folder import IMAGE_SUFFIXES
from relatum.data.preprocess import Preprocess
from relatum.data.source import FileSource
from relatum.errors import CheckpointError, DataError
from relatum.models import create_model
from relatum.models.outputs import as_logits
from relatum.relation import Relation
from relatum.relation.relation import MODULE_NAME
from relatum.train.checkpoint import State, latest_checkpoint, load_checkpoint

_LARGEST_SIDE = 2**14
# What create_model takes besides the shape of a model: files to read, and the arguments that are given anyway.
_NOT_A_SHAPE = {"name", "num_classes", "head", "scale", "pool", "weights", "encoder", "head_std", "head_bias"}


@dataclass(frozen=True)
class Trained:
    """A trained plain model, ready to use.

    Args:
        model: in evaluation mode, on the CPU, nothing of the relation inside.
        class_names: name of each output, in the order of the class ids.
        preprocess: turns an image (H, W, 3) uint8 into what the model expects.
        settings: model settings by which it was built.
        kwargs: further arguments it was built with.
    """

    model: nn.Module
    class_names: tuple[str, ...]
    preprocess: Preprocess
    settings: ModelConfig
    kwargs: dict[str, Any]

    @torch.inference_mode()
    def probabilities(self, images: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
        """Class probabilities (N, K) of images (H, W, 3) uint8 of any size."""
        batch = torch.stack([self.preprocess(image) for image in images])
        return as_logits(self.model(batch)).float().softmax(1)

    def predict_files(
        self, paths: Sequence[Path], top: int = 1, batch_size: int = 64
    ) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
        """Yield (path, [(class name, probability), ...]) for each image file, the `top` likeliest classes first."""
        source = FileSource(paths, np.zeros(len(paths), dtype=np.int64), ("unknown",))
        top = min(top, len(self.class_names))
        for start in range(0, len(paths), batch_size):
            chunk = range(start, min(start + batch_size, len(paths)))
            values, classes = self.probabilities([source.load(i) for i in chunk]).topk(top)
            for row, i in enumerate(chunk):
                names = [self.class_names[k] for k in classes[row].tolist()]
                yield Path(paths[i]), list(zip(names, values[row].tolist(), strict=True))


def load(path: Path | str) -> Trained:
    """Load the plain model of a run directory or a checkpoint file; weights of the moving average if it had one."""
    state = _read(Path(path))
    weights = state.part("ema") or state.part("model")
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{MODULE_NAME}.")}
    values = state.values
    if not {"model", "class_names", "preprocess"} <= values.keys():
        raise CheckpointError(
            f"{path} does not say how to build its model (it came from fit() with a model of yours); "
            "build the model yourself and load the tensors named 'model.*' from its safetensors file."
        )
    _check_description(values, path)
    settings = from_dict(values["model"], str(path), ModelConfig)
    names = tuple(values["class_names"])
    # Only what shapes the model: where it once started from has no part in it any more.
    shape = {"head": settings.head, "scale": settings.scale, "pool": settings.pool}
    model = create_model(settings.name, len(names), **shape, **values.get("model_kwargs", {}))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not fit the model '{settings.name}': {error}") from error
    kwargs = dict(values.get("model_kwargs", {}))
    return Trained(model.eval(), names, Preprocess.from_dict(values["preprocess"]), settings, kwargs)


def _check_description(values: dict[str, Any], path: Path | str) -> None:
    """Hold what a checkpoint says of its model against its form: it may come from a stranger."""
    names, kwargs, preprocess = values["class_names"], values.get("model_kwargs", {}), values["preprocess"]
    plain = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    tables = all(isinstance(table, dict) for table in (values["model"], kwargs, preprocess))
    sides = [preprocess.get(key) for key in ("image_size", "resize")] if tables else []
    if not plain or not all(type(side) is int and side <= _LARGEST_SIDE for side in sides) or not sides:
        raise CheckpointError(f"{path} describes its model in a form that relatum does not write; take another file.")
    foreign = sorted(kwargs.keys() & _NOT_A_SHAPE)
    if foreign:
        raise CheckpointError(f"{path} wants its model built with {foreign[0]}, which relatum does not write; refused.")


def load_relation(path: Path | str, relation: Relation) -> None:
    """Give an attached relation the weights that it had in a run directory or a checkpoint file."""
    state = _read(Path(path))
    weights = state.part("ema") or state.part("model")
    prefix = f"{MODULE_NAME}."
    own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    try:
        relation.module.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"the relation in {path} does not fit {relation.spec}: {error}") from error


def _read(path: Path) -> State:
    try:
        state = _newest(path)
    except RecursionError as error:  # JSON can be nested more deeply than Python calls
        raise CheckpointError(f"{path} is not a readable relatum checkpoint (nested too deeply).") from error
    if not isinstance(state.values, dict):
        raise CheckpointError(f"{path} is not a readable relatum checkpoint (its values are no table).")
    return state


def _newest(path: Path) -> State:
    if path.is_file():
        return load_checkpoint(path)
    if not path.is_dir():
        raise CheckpointError(f"there is no run at {path}; give a run directory or a checkpoint file.")
    state, problems = latest_checkpoint(path / "checkpoints")
    if state is None:
        raise CheckpointError(f"{path} is not a run directory with a usable checkpoint. {' '.join(problems)}".rstrip())
    for problem in problems:
        warnings.warn(problem, stacklevel=4)
    return state


def image_files(places: Sequence[Path | str]) -> list[Path]:
    """Return the image files named by `places`: files as they are, folders searched, in sorted order."""
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            inside = sorted(p for p in place.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise DataError(f"there are no images in {place}; known endings: {' '.join(IMAGE_SUFFIXES)}.")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise DataError(f"there is no file or folder {place}.")
    return found
