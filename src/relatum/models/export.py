"""Hand the trained model over: weights for timm, a torch.export program, an ONNX file. Nothing of ours is inside."""

from __future__ import annotations

import copy
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from relatum.errors import ConfigError, ModelError, suggest
from relatum.models.create import create_model
from relatum.models.export_blueprint import Blueprint, blueprint, timm_config
from relatum.models.export_check import check_same_logits, probe_images
from relatum.models.export_readme import readme
from relatum.relation import attached_relation

if TYPE_CHECKING:
    from relatum.trained import Trained

FORMATS = ("safetensors", "torch-export", "onnx")
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# A protobuf file ends at 2 GB; the rest is room for the graph.
_ONE_ONNX_FILE = 1_900_000_000


@dataclass(frozen=True)
class Exported:
    """One exported form of a model.

    Args:
        format: "safetensors", "torch-export" or "onnx".
        path: the file that holds the model.
        max_difference: largest difference of its logits from the model's, measured on the file read back.
        note: what to know about it, in words; may be empty.
    """

    format: str
    path: Path
    max_difference: float | None
    note: str


def export_model(trained: Trained, out: Path, formats: Sequence[str] = FORMATS) -> list[Exported]:
    """Write a trained model into the folder `out`, in one or several formats, each read back and checked.

    Beside the model lie `classes.txt`, `preprocess.json` and a `README.md` with the code that loads it. A file of the
    same name is replaced, and only once the new one has passed its check.

    Args:
        trained: from `relatum.load(run)`.
        out: folder; created if missing.
        formats: any of "safetensors" (model.safetensors and a config.json for timm), "torch-export" (model.pt2) and
            "onnx" (model.onnx; needs the extra `export`).

    Returns:
        One record per format, in the order asked for.

    Raises:
        ConfigError: unknown format.
        ModelError: a relation is still attached, `out` cannot be written, packages are missing, the model cannot be
            converted, or the converted model does not return the same logits.
    """
    formats = tuple(dict.fromkeys(formats))
    _check_request(trained, formats)
    job = _Job(trained)
    out = Path(out)
    results: list[Exported] = []
    with _staging(out) as staging:
        for name in formats:
            file, difference, note = _WRITERS[name](job, staging)
            results.append(Exported(name, out / file, difference, note))
        _write_companions(job, staging, results)
        for ready in sorted(staging.iterdir()):
            ready.replace(out / ready.name)
    return results


class _Job:
    """The model to export and what several formats need of it, computed once."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.model = copy.deepcopy(trained.model).cpu().float().eval().requires_grad_(False)

    @cached_property
    def plan(self) -> Blueprint:
        return blueprint(self.trained)

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        # Traced with two images: with one, the batch size would be taken for a constant.
        example = probe_images(self.trained.preprocess, 2)
        try:
            return torch.export.export(self.model, (example,), dynamic_shapes=_any_batch())
        except Exception as error:  # the tracer raises many kinds, and all mean the same to the user
            raise ModelError(
                f"torch.export cannot trace '{self.trained.settings.name}' for every batch size: {error}; "
                "export it as safetensors."
            ) from error

    def check(self, what: str, exported: Callable[[Tensor], Tensor]) -> float:
        return check_same_logits(what, self.model, exported, self.trained.preprocess)


def _any_batch() -> tuple[dict[int, torch.export.Dim], ...]:
    return ({0: torch.export.Dim("batch", min=1)},)


def _check_request(trained: Trained, formats: Sequence[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"unknown export format '{name}'; {suggest(name, FORMATS)}")
    if not formats:
        raise ConfigError(f"nothing to export: name at least one format of {', '.join(FORMATS)}.")
    if attached_relation(trained.model) is not None:
        raise ModelError("the model still has a relation attached; call relation.detach() and export the plain model.")
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if "onnx" in formats and missing:
        raise ModelError(f"ONNX export needs {', '.join(missing)}: pip install 'relatum[export]'")


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder inside `out` in which files wait until all checks have passed."""
    if out.exists() and not out.is_dir():
        raise ModelError(f"cannot export to {out}: it is a file; give a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=out) as staging:
            yield Path(staging)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot write to {out}: {reason}; choose another folder, or free it.") from error


def _write_safetensors(job: _Job, folder: Path) -> tuple[str, float, str]:
    # Copies, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in job.model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = timm_config(job.plan, job.model, job.trained.class_names, job.trained.preprocess)
    _write_json(folder / "config.json", config)
    return "model.safetensors", job.check("safetensors", _read_back(job, folder).eval()), job.plan.note


def _read_back(job: _Job, folder: Path) -> nn.Module:
    plan = job.plan
    if plan.by_timm:
        try:
            return timm.create_model(f"local-dir:{folder}", pretrained=True)
        except (RuntimeError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise ModelError(
                f"timm does not read the weights of '{plan.name}' back: {error}; export it as torch-export or onnx."
            ) from error
    options: dict[str, Any] = {"head": "cosine", "scale": plan.cosine[0][1].scale} if plan.cosine else {}
    model = create_model(plan.name, plan.classes, **options, **plan.args)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def _write_torch_export(job: _Job, folder: Path) -> tuple[str, float, str]:
    program = job.program
    try:
        torch.export.save(program, folder / "model.pt2")
    except RuntimeError as error:  # torch's writer reports a full disk this way
        raise ModelError(f"cannot write model.pt2: {error}; choose another folder, or free it.") from error
    loaded = torch.export.load(folder / "model.pt2").module()
    return "model.pt2", job.check("torch-export", loaded), "any batch size, needs torch only"


def _write_onnx(job: _Job, folder: Path) -> tuple[str, float, str]:
    file = folder / "model.onnx"
    one_file = sum(t.numel() * t.element_size() for t in job.model.state_dict().values()) < _ONE_ONNX_FILE
    try:
        torch.onnx.export(
            job.program,
            (probe_images(job.trained.preprocess, 2),),
            file,
            dynamo=True,
            external_data=not one_file,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=_any_batch(),
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ModelError(f"the model cannot be converted to ONNX: {error}; export it as torch-export.") from error
    beside = "" if one_file else "; keep model.onnx.data beside it"
    return "model.onnx", job.check("onnx", _onnx_runner(file)), f"any batch size, needs onnxruntime only{beside}"


def _onnx_runner(file: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


_WRITERS: dict[str, Callable[[_Job, Path], tuple[str, float, str]]] = {
    "safetensors": _write_safetensors,
    "torch-export": _write_torch_export,
    "onnx": _write_onnx,
}


def _write_companions(job: _Job, folder: Path, results: Sequence[Exported]) -> None:
    trained = job.trained
    # One line each: a line break inside a name must not shift the names after it.
    lines = [" ".join(name.splitlines()) + "\n" for name in trained.class_names]
    (folder / "classes.txt").write_text("".join(lines), encoding="utf-8")
    details = {"interpolation": "bilinear", "antialias": True, "channels": "RGB", "input": "N, 3, height, width"}
    _write_json(folder / "preprocess.json", {**trained.preprocess.to_dict(), **details})
    plan = job.plan if any(result.format == "safetensors" for result in results) else None
    (folder / "README.md").write_text(readme(trained, results, plan), encoding="utf-8")


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
