"""The tools by name, and `retune`, which tries them all on one set of features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from relatum.classifier.base import ClassifierTool
from relatum.classifier.disalign import DisAlign
from relatum.classifier.features import CachedFeatures
from relatum.classifier.linear import plain_copy
from relatum.classifier.retrain import CRT, LWS
from relatum.classifier.scaling import COLDEST, HOTTEST, LogitAdjustment, TauNorm, Temperature
from relatum.errors import ConfigError, DataError, suggest
from relatum.evaluate import Scores, score

TOOLS: dict[str, type[ClassifierTool]] = {
    tool.name: tool for tool in (CRT, LWS, TauNorm, DisAlign, LogitAdjustment, Temperature)
}
AS_TRAINED = "as trained"
_OWN_TRAINING = (
    "{tool}: its {setting} was chosen on images that the model was trained on; {bias}. "
    "A split 'val' beside 'test' gives an honest choice."
)
_BIASES = {
    "temperature": "the model is surer of those than of new ones, so it comes out too low",
    "tau-norm": "their rare classes look easier than new images are, so it comes out too low",
    "logit-adjustment": "their rare classes look easier than new images are, so it comes out too low",
}


@dataclass(frozen=True)
class AsTrained(ClassifierTool):
    """The classifier as it is, for comparison."""

    name: ClassVar[str] = AS_TRAINED

    def fit(self, features: CachedFeatures, head: nn.Module, *, seed: int = 0) -> nn.Linear:
        """Return a copy of `head`."""
        return plain_copy(head)

    def describe(self) -> str:
        """Return "none"."""
        return "none"


@dataclass(frozen=True)
class Retuned:
    """What one tool came to.

    Args:
        tool: its settings, with those filled in that were chosen.
        head: the new classifier (N, C) -> (N, K).
        chosen: the settings that were chosen on held-out features, by name.
        scores: by reported split.
        seconds: of choosing and fitting.
        notes: what to bear in mind with these numbers.
    """

    tool: ClassifierTool
    head: nn.Module
    chosen: dict[str, float]
    scores: dict[str, Scores]
    seconds: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the head, in JSON types."""
        return {
            "method": self.tool.name,
            "settings": asdict(self.tool),  # type: ignore[call-overload]
            "chosen": self.chosen,
            "foldable": self.tool.foldable,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
            "scores": {split: scores.to_dict() for split, scores in self.scores.items()},
        }


def retune(
    features: CachedFeatures,
    head: nn.Module,
    tools: Sequence[str | ClassifierTool] = tuple(TOOLS),
    *,
    seed: int = 0,
    rule: str = "standard",
    bootstrap: int = 0,
) -> dict[str, Retuned]:
    """Apply each tool to `head` on its own, and score what comes out on the splits of `features.reported`.

    Args:
        features: of the model that `head` belongs to.
        head: its linear classifier; not changed.
        tools: names from `TOOLS` for their defaults, or tools with settings of yours.
        seed: of everything that is drawn.
        rule: boundary between many, medium and few.
        bootstrap: resamples for the interval of top-1; 0 leaves it out.

    Returns:
        By tool name, with "as trained" for the head as it is first.
    """
    if not features.reported:
        raise DataError("there is no split to report on; give a 'val' or 'test' split beside 'train'.")
    settled = [AsTrained(), *map(_tool, tools)]
    names = [tool.name for tool in settled]
    if len(set(names)) < len(names):
        raise ConfigError(f"a tool is named twice ({', '.join(names[1:])}); call retune once for each setting of it.")
    return {tool.name: _apply(tool, features, head, seed, rule, bootstrap) for tool in settled}


def _tool(wanted: str | ClassifierTool) -> ClassifierTool:
    if isinstance(wanted, ClassifierTool):
        return wanted
    if wanted not in TOOLS:
        raise ConfigError(f"unknown classifier tool '{wanted}'; {suggest(wanted, TOOLS)}")
    return TOOLS[wanted]()


def _apply(
    tool: ClassifierTool, features: CachedFeatures, head: nn.Module, seed: int, rule: str, bootstrap: int
) -> Retuned:
    start = time.perf_counter()
    settled = tool.tuned(features, head)
    fitted = settled.fit(features, head, seed=seed)
    seconds = time.perf_counter() - start
    chosen = {tool.open_setting: float(getattr(settled, tool.open_setting))} if settled != tool else {}
    with torch.inference_mode():
        logits = {split: fitted(part.features) for split, part in features.reported.items()}
    scores = {
        split: score(
            logits[split],
            part.targets,
            features.prior,
            split=split,
            rule=rule,
            bootstrap=bootstrap,
            adjustment=settled.describe(),
        )
        for split, part in features.reported.items()
    }
    return Retuned(settled, fitted, chosen, scores, seconds, _notes(settled, chosen, features))


def _notes(tool: ClassifierTool, chosen: dict[str, float], features: CachedFeatures) -> tuple[str, ...]:
    notes = []
    if chosen and features.held_from == "train":
        words = {"tool": tool.name, "setting": tool.open_setting, "bias": _BIASES[tool.name]}
        notes.append(_OWN_TRAINING.format(**words))
    if isinstance(tool, Temperature) and chosen and not COLDEST * 1.01 < chosen["value"] < HOTTEST / 1.01:
        notes.append(f"{tool.name}: the best value lies at the end of what is searched, {COLDEST:g} to {HOTTEST:g}.")
    return tuple(notes)
