"""Guards of the loop: batches that are no use, and the wish to stop."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from types import FrameType, TracebackType
from typing import Any

from relatum import stopping
from relatum.config import TrainConfig
from relatum.data.loaders import Loaders
from relatum.errors import ConfigError
from relatum.launch import launched
from relatum.processes import agreed
from relatum.train.task import Task

# A Ctrl-C reaches a process of torchrun twice: from the terminal, and handed on by the launcher. Seconds between them.
_ECHO = 5.0


def check_batches(task: Task, loaders: Loaders, config: TrainConfig) -> None:
    """Refuse a run without a batch, and warn where accumulation splits what a relation relates."""
    batch = loaders.train.batch_size
    if len(loaders.train) == 0:
        raise ConfigError("the training loader has no batch; lower --data.batch-size.")
    if config.accumulate > 1 and task.relation_batch_matters:
        warnings.warn(
            f"gradient accumulation with a relation: samples attend to each other within micro-batches of {batch}, "
            f"not within {batch * config.accumulate}. That is another method than a larger batch.",
            stacklevel=4,
        )


class Interrupts:
    """Turn the first Ctrl-C, SIGTERM or closing of the terminal into a wish that the loop honours after the step.

    A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.requested = self.honoured = False
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in stopping.stop_signals():
                self._before[number] = signal.signal(number, self._handle)
        return self

    def agreed(self) -> bool:
        """Whether the loop is to stop; where one of several processes was told so, all stop after the same step."""
        self.honoured = agreed(self.requested)[0]
        return self.honoured

    def _handle(self, number: int, frame: FrameType | None) -> None:
        stopping.note(number)
        now = time.monotonic()
        if self.requested and not (launched() and now - self._since < _ECHO):
            raise KeyboardInterrupt
        self.requested, self._since = True, now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
