"""What is measured: the loop of `relatum train` around one model of one recipe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relatum.batch import Batch
from relatum.config import RunConfig, Stage, TrainConfig
from relatum.data.loaders import Loaders
from relatum.recipes import classification
from relatum.recipes.pretraining import build_pretraining
from relatum.recipes.pretraining_settings import pretrain_train
from relatum.train import Display, RunDirectory, Task
from relatum.train.loop import _Trainer

BATCH = 128
# By recipe, the stage that is measured where the user names neither recipe nor model.
DEFAULTS: dict[str, Stage] = {
    "cifar100-lt-100/balanced-softmax": "finetune",
    "cifar100-vit-nano/plain": "finetune",
    "livt/cifar100-lt-100": "pretrain",
}


@dataclass(frozen=True)
class Subject:
    """One model with its settings.

    Args:
        recipe: where the settings come from.
        config: the settings.
        stage: pretraining, or the training of the classifier.
    """

    recipe: str
    config: RunConfig
    stage: Stage

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.config.model.name}, {self.config.pretrain.method}" if self.pretrains else self.config.model.name

    @property
    def pretrains(self) -> bool:
        """Whether this is a first stage."""
        return self.stage == "pretrain"

    @property
    def train(self) -> TrainConfig:
        """The settings of the loop."""
        return pretrain_train(self.config) if self.pretrains else self.config.train

    def build(self) -> tuple[Task, Loaders]:
        """Make task and loaders, as `relatum train` would."""
        return build_pretraining(self.config) if self.pretrains else classification.build(self.config)

    def trainer(self, task: Task, loaders: Loaders, directory: RunDirectory | None = None) -> _Trainer:
        """The loop of `relatum train`, ready for its first step; silent."""
        loop = _Trainer(task, loaders, self.train, self.config.evaluate, directory, {}, Display(quiet=True))
        task.train()
        task.set_epoch(0, self.train.epochs)
        return loop


def subjects_of(recipe: str, config: RunConfig) -> list[Subject]:
    """The subjects of a recipe that the user named: its first stage if it has one, and its classifier."""
    alone = replace(config, pretrain=replace(config.pretrain, method="none"))
    second = [Subject(recipe, alone, "finetune")] if "finetune" in config.stages else []
    first = config.pretrain.method != "none" and "pretrain" in config.stages
    return [Subject(recipe, config, "pretrain"), *second] if first else second


def endless(loaders: Loaders) -> Iterator[Batch]:
    """Training batches, epoch after epoch."""
    return itertools.chain.from_iterable(loaders.train.epoch(epoch) for epoch in itertools.count())
