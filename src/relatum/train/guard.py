"""Guards of the loop: numbers that are not finite, and the wish to stop."""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from relatum import stopping
from relatum.errors import TrainingError
from relatum.train.record import RunDirectory


def require_finite(loss: float, gradient: float, directory: RunDirectory | None, details: dict[str, Any]) -> None:
    """Stop before the step when the loss or the gradient norm is not finite; say where, and write failure.json."""
    if math.isfinite(loss) and math.isfinite(gradient):
        return
    what = "loss" if not math.isfinite(loss) else "gradient"
    report = {**details, "loss": str(loss), "gradient_norm": str(gradient)}
    where = f" Details: {directory.write_failure(report)}." if directory is not None else ""
    raise TrainingError(
        f"the {what} is not finite at step {details['step']} (learning rate {details['lr']:.3g}); stopped before the "
        f"step, the last checkpoint is good.{where} "
        "Try a lower --train.lr, --train.clip 1, or --train.precision float32."
    )


class Interrupts:
    """Turn the first Ctrl-C, SIGTERM or closing of the terminal into a wish that the loop honours after the step.

    A second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in stopping.stop_signals():
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        stopping.note(number)
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
