"""Masked pretraining on the page: curves, the newest picture, and what the encoder is worth to its neighbours."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from relatum.prior import GROUPS
from relatum.report.format import NOT_AVAILABLE, decimal, finite, percent, percent_sign, plural, setting
from relatum.report.records import RunRecord

# Pictures are the heaviest part of a page that people mail.
MOST_PICTURES = 4
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADS = ("Mask", "Hidden", "Pixels", "Epochs", "Loss", "MSE", "PSNR")
_NEIGHBOURS = ("All", *(name.capitalize() for name in GROUPS))


@dataclass(frozen=True)
class PretrainedRun:
    """One row of the table, written."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class EmbeddedPicture:
    """A picture of a run: its name, when it was drawn, and the picture itself as a data address."""

    name: str
    when: str
    address: str


def pretraining_section(records: Sequence[RunRecord]) -> dict[str, Any] | None:
    """Return what the template shows about the first stages of `records`, or None where there is none."""
    # Imported here: matplotlib is slow to load, and the words of this file are also used without a page.
    from relatum.report import curves

    pretrained = [(record, record.pretrain) for record in records if record.pretrain is not None]
    if not pretrained:
        return None
    probed = any(_neighbours(stage) for _, stage in pretrained)
    rows = [PretrainedRun(record.name, _cells(stage, probed)) for record, stage in pretrained]
    shown = [_pictures(record.name, stage, len(pretrained)) for record, stage in pretrained[:MOST_PICTURES]]
    return {
        "heads": [*_HEADS, *(f"k-NN {name}" for name in _NEIGHBOURS if probed)],
        "rows": rows,
        "splits": " and ".join(dict.fromkeys(str(stage.split) for _, stage in pretrained if stage.split)),
        "curves": [Markup(svg) for svg in curves.pretraining(records)],
        "pictures": [picture for pictures in shown for picture in pictures],
        "normalised": any(_setting(stage, "pixels") == "normalised" for _, stage in pretrained),
        "probed": probed,
    }


def reconstruction_headline(records: Sequence[RunRecord]) -> tuple[str, list[str]]:
    """Return title and sentences of a page about runs of which only the pretraining is there."""
    stages = [(record.name, record.pretrain) for record in records if record.pretrain is not None]
    sentences = [_sentence(name, stage) for name, stage in stages]
    found = [finite(stage.reconstruction.get("psnr")) for _, stage in stages]
    if len(found) == 1 and found[0] is not None:
        return f"Hidden patches are reconstructed at {found[0]:.1f}\u00a0dB", sentences
    if len(found) > 1 and any(value is not None for value in found):
        return f"Reconstruction of hidden patches: {plural(len(found), 'run')}", sentences
    return "Masked pretraining, not measured yet", sentences


def _sentence(name: str, stage: RunRecord) -> str:
    found = stage.reconstruction
    hidden = f"a {_setting(stage, 'mask')} mask that hides {percent_sign(_setting(stage, 'ratio'))}"
    if finite(found.get("psnr")) is None:
        return f"{name}: no reconstruction has been measured yet ({hidden})."
    images = finite(found.get("samples"))
    where = f"on {stage.split}" + ("" if images is None else f" ({plural(int(images), 'image')})")
    return f"{name}: PSNR {_decibels(found)}, MSE {decimal(found.get('mse'), 4)} {where}, under {hidden}."


def _cells(stage: RunRecord, probed: bool) -> tuple[str, ...]:
    found = stage.reconstruction
    cells = [
        setting(_setting(stage, "mask")),
        percent_sign(_setting(stage, "ratio")),
        setting(_setting(stage, "pixels")),
        _epochs(stage),
        decimal(found.get("loss")),
        decimal(found.get("mse"), 4),
        _decibels(found),
    ]
    if probed:
        scores = _neighbours(stage)
        groups = [scores.get("groups", {}).get(name, {}).get("accuracy") for name in GROUPS]
        cells += [percent(value) for value in (scores.get("top1"), *groups)]
    return tuple(cells)


def _setting(stage: RunRecord, key: str) -> Any:
    return stage.reconstruction.get(key, stage.config.get("pretrain", {}).get(key))


def _epochs(stage: RunRecord) -> str:
    done = max((float(row["epoch"]) for row in stage.metrics if "epoch" in row), default=0.0)
    total = stage.config.get("pretrain", {}).get("epochs")
    return f"{done:g}" if total is None or done >= total else f"{done:g} of {total}"


def _decibels(found: dict[str, Any]) -> str:
    number = finite(found.get("psnr"))
    return NOT_AVAILABLE if number is None else f"{number:.2f}\u00a0dB"


def _neighbours(stage: RunRecord) -> dict[str, Any]:
    """Scores of the k-NN classification on the primary split, {} if it was not run."""
    splits = stage.probe.get("k-nn", {})
    return next((splits[name] for name in ("test", "val", *splits) if name in splits), {})


def _pictures(name: str, stage: RunRecord, runs: int) -> list[EmbeddedPicture]:
    """The newest picture; on a page about one run the first one before it, to see what the training changed."""
    found = sorted((stage.path / "pictures").glob("*.png"), key=_epoch_of)
    chosen = found[-1:] if runs > 1 or len(found) == 1 else [*found[:1], *found[-1:]]
    known = [EmbeddedPicture(name, _when(path), _embedded(path)) for path in chosen]
    return [picture for picture in known if picture.address]


def _epoch_of(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return (int(digits[-1]) if digits else -1, path.name)


def _when(path: Path) -> str:
    epoch, _ = _epoch_of(path)
    return path.stem if epoch < 0 else f"after epoch {epoch}"


def _embedded(path: Path) -> str:
    """The picture as a data address, "" if it is none: a file cut off by a crash must not spoil the page."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    if not content.startswith(_SIGNATURE):
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
