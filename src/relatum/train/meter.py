"""Averages between two log lines, and where the lines go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relatum.errors import ConfigError
from relatum.processes import is_first, total, world
from relatum.train.record import RunDirectory


class MetricsLog:
    """Collect the scalar parts of task outputs; write their means to metrics.jsonl and, if asked, TensorBoard.

    Of several processes each collects its own, and the lines hold the means over all of them.

    Args:
        directory: the run directory, or None to write nothing.
        tensorboard: also write TensorBoard files into the run directory.
    """

    def __init__(self, directory: RunDirectory | None, *, tensorboard: bool = False) -> None:
        self.directory = directory
        self.last: dict[str, float] = {}
        self.images_per_second = 0.0
        self.lr = 0.0
        self.rows = 0
        self._writer = _tensorboard_writer(directory) if tensorboard and directory is not None else None
        self._clear()

    def _clear(self) -> None:
        self.steps, self._images, self._seconds = 0, 0, 0.0
        self._sums: dict[str, float] = {}
        self._counted: dict[str, int] = {}  # images behind each sum: a part need not be there at every step

    def add(self, output: dict[str, Tensor], images: int) -> None:
        """Add the scalar entries of one micro-batch."""
        for name, value in output.items():
            if value.ndim == 0:
                self._sums[name] = self._sums.get(name, 0.0) + float(value.detach()) * images
                self._counted[name] = self._counted.get(name, 0) + images
        self._images += images

    def count(self, seconds: float, lr: float) -> None:
        """Count one optimizer step that took `seconds` at the learning rate `lr`."""
        self.steps += 1
        self.lr = lr
        self._seconds += seconds
        self.images_per_second = world() * self._images / self._seconds if self._seconds else 0.0

    def write_train(self, step: int, epoch: float) -> None:
        """Write the means since the last line and start anew."""
        images, sums, counted = self._totals()
        self.last = {name: value / counted[name] for name, value in sums.items()}
        speed = {"images_per_second": round(images / self._seconds if self._seconds else 0.0, 1)}
        self._write({"kind": "train", "epoch": round(epoch, 4), "step": step, **self.last, "lr": self.lr, **speed})
        self._clear()

    def _totals(self) -> tuple[int, dict[str, float], dict[str, int]]:
        """Images, sums and the images behind each sum since the last line, over all processes."""
        names = sorted(self._sums)
        own = [self._images, *(self._sums[n] for n in names), *(self._counted[n] for n in names)]
        images, *rest = total(torch.tensor(own, dtype=torch.float64)).tolist()
        summed, counted = (dict(zip(names, part, strict=True)) for part in (rest[: len(names)], rest[len(names) :]))
        return int(images), {n: summed[n] for n in self._sums}, {n: int(counted[n]) for n in self._sums}

    def write_eval(self, split: str, numbers: dict[str, float | None], step: int, epoch: float) -> None:
        """Write one evaluation."""
        self._write({"kind": "eval", "split": split, "epoch": round(epoch, 4), "step": step, **numbers})

    def _write(self, row: dict[str, Any]) -> None:
        if self.directory is not None:
            self.directory.append_metrics(row)
            self.rows += 1
        if self._writer is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"{row.get('split', row['kind'])}/{name}", value, row["step"])

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to write the same lines: rows so far, and the sums since the last one."""
        images, summed, counted = self._totals()
        sums = {"steps": self.steps, "images": images, "seconds": self._seconds, "sums": summed, "counted": counted}
        return {"rows": self.rows, "last": self.last, "lr": self.lr, **sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`; lines of the file that came after it are dropped."""
        self.rows, self.lr, self.last, self._sums = state["rows"], state["lr"], state["last"], dict(state["sums"])
        self.steps, self._images, self._seconds = state["steps"], state["images"], state["seconds"]
        # Checkpoints of earlier versions have no counts: there, all images were behind every sum.
        self._counted = dict(state.get("counted", dict.fromkeys(self._sums, self._images)))
        if not is_first():  # the sums are those of all processes: only one of them may carry them on
            self._images, self._sums = 0, dict.fromkeys(self._sums, 0.0)
            self._counted = dict.fromkeys(self._sums, 0)

    def close(self) -> None:
        """Flush the TensorBoard files."""
        if self._writer is not None:
            self._writer.close()


def _tensorboard_writer(directory: RunDirectory) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--train.tensorboard needs the extra: pip install 'relatum[track]'.") from error
    return SummaryWriter(str(directory.path / "tensorboard"))
