"""`minutes`: the epochs that fit, chosen once for a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relatum.config import DataConfig, ModelConfig, PretrainConfig, RunConfig, TrainConfig
from relatum.errors import ConfigError
from relatum.recipes import budget
from relatum.recipes.classification import build, run
from relatum.recipes.stages import planned_stages
from relatum.train import Display

CONFIG = RunConfig(
    minutes=1.0,
    data=DataConfig(
        kind="shapes", image_size=16, batch_size=8, long_tail="exponential", largest=24, sizes=(12, 16), workers=0
    ),
    model=ModelConfig(name="fastnet-s"),
    train=TrainConfig(epochs=10, warmup_epochs=2.0, eval_every=0, threads=1, device="cpu", precision="float32"),
)


class Told(Display):
    """A quiet display that remembers what it was told."""

    def __init__(self):
        super().__init__(quiet=True)
        self.said = []

    def say(self, text):
        self.said.append(text)


def _measured(monkeypatch, epoch, evaluation):
    asked = []
    monkeypatch.setattr(budget, "_time", lambda *args: asked.append(1) or (epoch, evaluation))
    return asked


@pytest.mark.parametrize(
    ("minutes", "epoch", "evaluation", "expected"),
    [(1.0, 5.0, 8.0, 10), (1.0, 5.0, 8.3, 9), (10.0, 22.0, 12.0, 25), (0.1, 5.0, 0.0, 1)],
)
def test_epochs_are_what_fits_beside_evaluation_and_reserve(
    tmp_path, monkeypatch, minutes, epoch, evaluation, expected
):
    _measured(monkeypatch, epoch, evaluation)  # 97 % of the time is to be used
    shown = Told()
    config = budget.within_minutes(replace(CONFIG, minutes=minutes), tmp_path, lambda c: (None, None), shown)
    assert config.train.epochs == expected
    assert config.train.warmup_epochs == pytest.approx(expected * 0.2)
    assert f"hold {expected} epochs" in shown.said[0]
    assert replace(config, train=CONFIG.train) == replace(CONFIG, minutes=minutes), "nothing else changes"


def test_without_minutes_nothing_is_measured(tmp_path):
    plain = replace(CONFIG, minutes=0.0)
    assert budget.within_minutes(plain, tmp_path, None, None) is plain


def test_a_run_keeps_the_epochs_it_began_with(tmp_path, monkeypatch):
    asked = _measured(monkeypatch, 20.0, 0.0)
    out = tmp_path / "run"
    stopped = replace(CONFIG, train=replace(CONFIG.train, max_steps=2))
    assert run(stopped, "own", out, Display(quiet=True)).steps == 2
    _measured(monkeypatch, 1.0, 0.0)  # now a faster machine
    on = replace(CONFIG, train=replace(CONFIG.train, max_steps=3))
    assert run(on, "own", out, Display(quiet=True)).steps == 3
    assert len(asked) == 1
    assert budget.within_minutes(CONFIG, out, None, None).train.epochs == 2
    more = budget.within_minutes(replace(CONFIG, minutes=2.0), out, lambda c: (None, None), Told())
    assert more.train.epochs == 116, "other minutes are another run, which the directory then refuses"


def test_a_real_measurement_sees_every_size_and_leaves_a_sensible_number(tmp_path):
    task, loaders = build(CONFIG)
    assert loaders.train.sizes.shares() == {0: 0.5, 5: 0.5}
    epoch, evaluation = budget._time(task, loaders, CONFIG)
    assert epoch > 0 and evaluation > 0


def test_too_little_time_is_an_error_that_says_how_much_is_needed(tmp_path, monkeypatch):
    _measured(monkeypatch, 90.0, 30.0)
    with pytest.raises(ConfigError, match=r"an epoch takes 1\.5 minutes here"):
        budget.within_minutes(CONFIG, tmp_path, lambda c: (None, None), Told())


def test_recipes_of_two_stages_refuse_it():
    config = replace(CONFIG, pretrain=PretrainConfig(method="mae"), model=ModelConfig(name="vit-pico-p8"))
    with pytest.raises(ConfigError, match="one stage"):
        planned_stages(config)
