"""What a run says of the images that were set aside: on the display, in its manifest, and when it goes on."""

from __future__ import annotations

from typing import Any

from relatum.config import RunConfig
from relatum.data.loaders import Loaders
from relatum.data.quarantine import Quarantine
from relatum.errors import ConfigError
from relatum.train import Display, RunDirectory

KEY = "quarantine"
_NAMED = 5


def note_quarantine(
    config: RunConfig, loaders: Loaders, directory: RunDirectory | None, display: Display
) -> dict[str, Any]:
    """Say what was set aside, keep it in the manifest, and return what a checkpoint keeps of it.

    Of several processes the first has the directory.

    Raises:
        ConfigError: a run that goes on began with other images set aside, and `allow_changes` is off.
    """
    if config.data.bad_images != KEY:
        return {}
    found = loaders.quarantine
    if found.images:
        display.say(found.sentence())
    # a run that has no checkpoint yet has nothing to agree with: its directory begins without a status
    if directory is not None and directory.manifest.get("status"):
        _check_same(config, found, directory, display)
    if directory is not None:
        directory.update_manifest(**{KEY: found.to_dict()})
    return {KEY: found.to_dict()}


def _check_same(config: RunConfig, found: Quarantine, directory: RunDirectory, display: Display) -> None:
    kept = directory.manifest.get(KEY)
    changes = found.differences(Quarantine() if kept is None else Quarantine.from_dict(kept))
    if not changes:
        return
    more = f"; and {len(changes) - _NAMED:,} more" if len(changes) > _NAMED else ""
    words = f"other images are set aside than when {directory.path} began: {'; '.join(changes[:_NAMED])}{more}."
    if not config.allow_changes:
        raise ConfigError(
            f"{words} Put the files back as they were, give another --out, or go on all the same with --allow-changes."
        )
    display.say(f"Allowed change: {words}")
