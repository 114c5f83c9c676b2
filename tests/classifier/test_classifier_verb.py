"""`relatum classifier RUN` on a tiny run of the generated shapes world, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from relatum import cli
from relatum.classifier.tools import TOOLS
from relatum.classifier.verb import ALL, classifier
from relatum.config import DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, RunConfig, TrainConfig
from relatum.errors import ConfigError, DataError, ModelError
from relatum.recipes.classification import run
from relatum.train import Display, load_checkpoint
from relatum.trained import load


def _config(head: str = "linear", objective: str = "cross-entropy") -> RunConfig:
    return RunConfig(
        data=DataConfig(
            kind="shapes", long_tail="exponential", imbalance=5.0, largest=6, image_size=8, batch_size=16, workers=0
        ),
        model=ModelConfig(name="resnet20-cifar", head=head),
        objective=ObjectiveConfig(name=objective),
        train=TrainConfig(epochs=1, max_steps=1, ema=0.5, precision="float32", device="cpu", eval_every=0),
        evaluate=EvalConfig(bootstrap=0, shot_rule="thirds"),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of one step; do not write to it."""
    return run(_config(), "shapes-lt", tmp_path_factory.mktemp("classifier") / "plain", Display(quiet=True)).path


@pytest.fixture(scope="module")
def scaled(trained, tmp_path_factory) -> Path:
    """The run with LWS, written as a run."""
    out = tmp_path_factory.mktemp("classifier") / "lws"
    assert classifier([str(trained), "--methods", "lws", "--out", str(out)]) == 0
    return out


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _shown(capsys, *words) -> str:
    capsys.readouterr()
    assert classifier([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_methods_are_those_of_the_registry():
    assert tuple(TOOLS) == ALL


def test_one_table_says_it_all(trained, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before = _files(trained)
    shown = _shown(capsys, trained)
    for name in ("as trained", *ALL):
        assert sum(line.startswith(f" {name} ") for line in shown.splitlines()) == 1
    for head in ("All", "Many (7)", "Medium (7)", "Few (6)", "ECE", "chosen", "seconds"):
        assert head in shown
    assert "percent on test" in shown and "shot rule thirds" in shown
    assert "chosen on a share of the training images" in shown
    assert "note: temperature: its value was chosen on images that the model was trained on" in shown
    assert "double correction" not in shown
    assert _files(trained) == before


def test_json_repeats_and_agrees_with_the_run(trained, capsys):
    words = (trained, "--methods", "tau-norm", "temperature", "--json", "--seed")
    found, again, other = (json.loads(_shown(capsys, *words, seed)) for seed in (3, 3, 4))
    assert list(found["methods"]) == ["as trained", "tau-norm", "temperature"]
    assert (found["held_out"], found["seed"], found["run"]) == ("train", 3, str(trained))
    scores = json.loads((trained / "scores.json").read_text())["test"]
    assert found["methods"]["as trained"]["scores"]["test"]["confusion"] == scores["confusion"]
    assert found["methods"]["as trained"]["scores"]["test"]["nll"] == pytest.approx(scores["nll"], rel=1e-5)
    for name in found["methods"]:
        assert found["methods"][name]["scores"] == again["methods"][name]["scores"]
    assert other["methods"]["temperature"]["chosen"] != found["methods"]["temperature"]["chosen"]


def test_what_is_written_is_a_run_with_another_classifier(trained, scaled):
    old, new = load(trained), load(scaled)
    changed = {
        name for name, tensor in new.model.state_dict().items() if not torch.equal(tensor, old.model.state_dict()[name])
    }
    assert changed == {"fc.weight", "fc.bias"}
    assert (new.class_names, new.preprocess, new.settings) == (old.class_names, old.preprocess, old.settings)
    manifest = json.loads((scaled / "manifest.json").read_text())
    assert manifest["classifier"]["method"] == "lws" and manifest["classifier"]["from"] == str(trained.resolve())
    assert manifest["classifier"]["settings"]["epochs"] == 5 and "held_out" not in manifest["classifier"]
    assert (manifest["recipe"], manifest["status"]) == ("shapes-lt", "finished")
    state = load_checkpoint(next((scaled / "checkpoints").glob("*.safetensors")))
    assert {name.partition(".")[0] for name in state.tensors} == {"model"}
    assert json.loads((scaled / "scores.json").read_text())["test"]["adjustment"].endswith("(LWS)")


def test_the_other_verbs_accept_it(trained, scaled, tmp_path, capsys):
    assert cli.main(["evaluate", str(scaled), "--json", "--bootstrap", "0", "--shot-rule", "thirds"]) == 0
    measured, written = json.loads(capsys.readouterr().out)["test"], json.loads((scaled / "scores.json").read_text())
    assert measured["confusion"] == written["test"]["confusion"]
    assert measured["ece"] == pytest.approx(written["test"]["ece"], abs=1e-5)
    assert cli.main(["report", str(trained), str(scaled), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert cli.main(["export", str(scaled), str(tmp_path / "exported"), "--formats", "safetensors"]) == 0
    upon = [str(scaled), "--methods", "temperature", "--out", str(tmp_path / "both")]
    assert classifier(upon) == 0
    chain = json.loads((tmp_path / "both" / "manifest.json").read_text())["classifier"]
    assert chain["from"] == str(scaled.resolve()) and chain["held_out"] == "train" and chain["chosen"]["value"] > 0


def test_a_double_correction_is_said(tmp_path, capsys):
    path = run(_config(objective="balanced-softmax"), "shapes-lt", tmp_path / "balanced", Display(quiet=True)).path
    assert "double correction" in _shown(capsys, path, "--methods", "logit-adjustment")
    assert "double correction" not in _shown(capsys, path, "--methods", "tau-norm")


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--out writes one classifier, not 6"),
        (("--methods", "crt", "lws"), "--out writes one classifier, not 2"),
        (("--methods", "disalign"), "disalign cannot be folded"),
        (("--methods", "crt", "crt"), "each once"),
        (("--methods", "cRT"), "--methods is 'cRT'"),
        (("--methods", "crt", "--seed", "-1"), "--seed is -1"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        classifier([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), *words])
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(trained, tmp_path):
    before = _files(trained)
    with pytest.raises(ConfigError, match="is not empty; give --out a new directory"):
        classifier([str(trained), "--methods", "lws", "--out", str(trained)])
    assert _files(trained) == before
    with pytest.raises(ConfigError, match="is a file"):
        classifier([str(trained / "config.toml")])


def test_runs_that_cannot_be_tuned_say_why(trained, tmp_path):
    cosine = run(_config(head="cosine"), "shapes-lt", tmp_path / "cosine", Display(quiet=True)).path
    with pytest.raises(ModelError, match="CosineClassifier"):
        classifier([str(cosine)])
    text = (trained / "config.toml").read_text()
    moved = tmp_path / "moved"
    (moved / "checkpoints").mkdir(parents=True)
    for path in (trained / "checkpoints").iterdir():
        (moved / "checkpoints" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "photos" / "ant").mkdir(parents=True)
    (moved / "config.toml").write_text(text.replace('kind = "shapes"', 'kind = "folder"'))
    with pytest.raises(DataError):
        classifier([str(moved), "--data-root", str(tmp_path / "photos")])
