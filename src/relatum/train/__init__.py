"""One loop for every task."""

from relatum.train.checkpoint import load_checkpoint, save_checkpoint
from relatum.train.classification import ClassificationTask
from relatum.train.display import Display
from relatum.train.loop import fit
from relatum.train.masked import MaskedTask
from relatum.train.record import RunDirectory, open_run
from relatum.train.run import Run
from relatum.train.task import Task

__all__ = [
    "ClassificationTask",
    "Display",
    "MaskedTask",
    "Run",
    "RunDirectory",
    "Task",
    "fit",
    "load_checkpoint",
    "open_run",
    "save_checkpoint",
]
