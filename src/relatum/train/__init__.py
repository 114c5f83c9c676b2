"""One loop for every task."""

from relatum.train.checkpoint import load_checkpoint, save_checkpoint
from relatum.train.display import Display
from relatum.train.loop import fit
from relatum.train.record import RunDirectory
from relatum.train.run import Run
from relatum.train.task import ClassificationTask, Task

__all__ = [
    "ClassificationTask",
    "Display",
    "Run",
    "RunDirectory",
    "Task",
    "fit",
    "load_checkpoint",
    "save_checkpoint",
]
