"""Figures about training: loss and accuracy over the epochs. Each returns inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from relatum.report.format import finite
from relatum.report.records import RunRecord
from relatum.report.svg import draw_svg, marker, percent_axis, series_color

_SIZE = (4.4, 3.2)
Curve = tuple[list[float], list[float]]


def training_loss(records: Sequence[RunRecord]) -> str | None:
    """Draw the training loss over epochs, or return None where no run has logged any."""
    label = "Training loss per epoch of " + ", ".join(record.name for record in records)
    curves = [_per_epoch(record, lambda row: finite(row.get("loss"))) for record in records]
    return _curves("loss", label, curves, "training loss")


def stream_gap(records: Sequence[RunRecord]) -> str | None:
    """Draw how much larger the loss of the related stream is than that of the plain one, or return None."""
    label = "Loss of the related stream minus that of the plain one, per epoch of " + ", ".join(r.name for r in records)
    curves = [_per_epoch(record, _gap) for record in records]
    return _curves("stream-gap", label, curves, "related minus plain loss")


def stream_agreement(records: Sequence[RunRecord]) -> str | None:
    """Draw the share of training samples to which both streams give the same class, or return None."""
    label = "Agreement of plain and related stream per epoch of " + ", ".join(r.name for r in records)
    curves = [_per_epoch(record, lambda row: finite(row.get("agreement")), 100.0) for record in records]
    return _curves("agreement", label, curves, "agreement of the streams", in_percent=True)


def evaluation(records: Sequence[RunRecord], key: str, words: str) -> str | None:
    """Draw one accuracy of the evaluation rows over epochs, or return None where no run has it.

    Args:
        records: the runs.
        key: name in the rows: top1, many, medium or few.
        words: the same for people, as label of the axis.
    """
    label = f"{words} per epoch of " + ", ".join(record.name for record in records)
    curves = [_measured(record, key, 100.0) for record in records]
    return _curves(f"eval-{key}", label, curves, words, in_percent=True)


def pretraining(records: Sequence[RunRecord]) -> list[str]:
    """Draw loss, related minus plain loss, masked MSE and PSNR of the first stages; what no run has is left out."""
    names = ", ".join(record.name for record in records if record.pretrain)
    nothing: Curve = ([], [])  # a run without a first stage keeps its place, so that colours stay
    stages = [record.pretrain for record in records]
    loss = [nothing if s is None else _per_epoch(s, lambda row: finite(row.get("loss"))) for s in stages]
    gap = [nothing if s is None else _per_epoch(s, _gap) for s in stages]
    mse, psnr = ([nothing if s is None else _measured(s, key) for s in stages] for key in ("mse", "psnr"))
    drawn = [
        _curves("pretrain-loss", f"Loss of the pretraining of {names}", loss, "training loss"),
        _curves("pretrain-gap", f"Related minus plain loss of the pretraining of {names}", gap, "related minus plain"),
        _curves("pretrain-mse", f"Error on hidden patches of {names}", mse, "MSE of hidden patches"),
        _curves("pretrain-psnr", f"PSNR of hidden patches of {names}", psnr, "PSNR of hidden patches, dB", zero=False),
    ]
    return [svg for svg in drawn if svg]


def evaluated_split(record: RunRecord) -> str | None:
    """Return the split whose rows the curves show: the primary one if it was evaluated during training, else val."""
    known = {row["split"] for row in record.metrics if row.get("kind") == "eval" and "split" in row}
    return next((name for name in (record.split, "val", *sorted(known)) if name in known), None)


def _gap(row: dict[str, Any]) -> float | None:
    plain, related = finite(row.get("loss/plain")), finite(row.get("loss/related"))
    return None if plain is None or related is None else related - plain


def _per_epoch(record: RunRecord, read: Callable[[dict[str, Any]], float | None], scale: float = 1.0) -> Curve:
    rows = [(float(r["epoch"]), scale * value) for r in record.training() if (value := read(r)) is not None]
    if not rows or max(epoch for epoch, _ in rows) < 3:
        return [epoch for epoch, _ in rows], [value for _, value in rows]
    epochs: dict[float, list[float]] = {}
    for epoch, value in rows:
        epochs.setdefault(float(np.ceil(epoch)), []).append(value)
    return list(epochs), [float(np.mean(values)) for values in epochs.values()]


def _measured(record: RunRecord, key: str, scale: float = 1.0) -> Curve:
    rows = record.evaluations(evaluated_split(record))
    known = [(float(r["epoch"]), scale * value) for r in rows if (value := finite(r.get(key))) is not None]
    return [epoch for epoch, _ in known], [value for _, value in known]


def _curves(
    key: str, label: str, curves: list[Curve], words: str, *, in_percent: bool = False, zero: bool = True
) -> str | None:
    if not any(x for x, _ in curves):
        return None
    return draw_svg(key, label, _SIZE, _drawing(curves, words, in_percent, zero))


def _drawing(curves: list[Curve], words: str, in_percent: bool, zero: bool) -> Callable[[Figure], None]:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (x, y) in enumerate(curves):
            every = max(len(x) // 6, 1)
            axes.plot(x, y, color=series_color(i), marker=marker(i), markersize=5, markevery=every, linewidth=1.6)
        axes.set_xlabel("epoch")
        axes.set_ylabel(words)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        if in_percent:
            percent_axis(axes, high=max(10.0, 1.08 * max(max(y, default=0.0) for _, y in curves)))
        else:
            axes.grid(visible=False, axis="x")
        if zero and not in_percent:
            axes.set_ylim(bottom=min(0.0, *(min(y, default=0.0) for _, y in curves)))

    return draw
