"""relatum: samples that learn from each other while training; the same plain model when you ship it.

The public names are imported on first use, so that `import relatum` and `relatum --help` stay fast.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Must be set before torch starts its threads. Threads that spin while they wait make training many times slower on a
# shared machine, threads that sleep at once make it a third slower on a quiet one: spin for a moment, then sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"

_HOMES = {
    "relatum.relation": ("BatchAttention", "BatchFormer", "BatchFormerV2", "Relation", "attach", "attached_relation"),
    "relatum.prior": ("ClassPrior",),
    "relatum.batch": ("Batch",),
    "relatum.models": ("create_model",),
    "relatum.data": ("build_loaders", "loaders_from_splits"),
    "relatum.evaluate": ("Scores",),
    "relatum.train": ("ClassificationTask", "fit"),
    "relatum.trained": ("Trained", "load"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# The rooms `evaluate` and `report` are also callable: their name is their door.
_ROOMS = (
    "bench", "classifier", "data", "evaluate", "models", "objectives", "recipes", "relation", "report", "sweep",
    "train",
)  # fmt: skip

__all__ = ["__version__", "evaluate", "objectives", "report", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return importlib.import_module(f"relatum.{name}")
    raise AttributeError(f"module 'relatum' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
