"""When the related stream takes part in training."""

from __future__ import annotations

from dataclasses import dataclass

from relatum.errors import ConfigError

_ROUNDING = 1e-9  # 3 of 10 epochs is a little less than 0.3 in binary and must not miss its step


@dataclass(frozen=True)
class Presence:
    """How much of its weight the related stream has in the course of a training; all of it, unless asked otherwise.

    Everything is a share of the epochs and a pure function of the progress: a resumed training needs nothing saved.

    Args:
        fade_start: where the weight of the related stream begins to fall, linearly.
        fade_end: where it has fallen to 0; from there on the related stream is not computed. 1 and 1 is off.
    """

    fade_start: float = 1.0
    fade_end: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.fade_start <= self.fade_end <= 1:
            raise ConfigError(
                f"the related stream fades from fade_start {self.fade_start:g} to fade_end {self.fade_end:g} of the "
                "epochs; these must lie in that order between 0 and 1."
            )
        if not self.fade_end:
            raise ConfigError("fade_end 0 leaves no step with a relation; set it above 0, or train without a relation.")

    def share(self, done: float) -> float:
        """Return the part of its weight that the related stream has when `done`, a share of the epochs, is over."""
        if self.fade_end == 1 == self.fade_start:
            return 1.0
        left = self.fade_end - done
        if left <= _ROUNDING:
            return 0.0
        length = self.fade_end - self.fade_start
        return min(left / length, 1.0) if length else 1.0
