"""What a run leaves behind can be used: the plain model, its class names, its preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import relatum
from relatum.config import DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, RelationConfig, RunConfig, TrainConfig
from relatum.config_files import to_dict
from relatum.data import Preprocess, build_loaders
from relatum.data.shapes import NAMES
from relatum.errors import CheckpointError, DataError
from relatum.evaluate import evaluate
from relatum.models import create_model
from relatum.recipes.classification import evaluate_run, run
from relatum.train import Display, load_checkpoint, save_checkpoint
from relatum.train.checkpoint import State
from relatum.trained import image_files, load

CONFIG = RunConfig(
    data=DataConfig(
        kind="shapes", long_tail="exponential", imbalance=5.0, largest=6, image_size=16, batch_size=16, normalise="half"
    ),
    model=ModelConfig(name="resnet20-cifar"),
    relation=RelationConfig(name="batchformer"),
    objective=ObjectiveConfig(name="balanced-softmax"),
    train=TrainConfig(epochs=1, max_steps=2, ema=0.5, precision="float32", device="cpu"),
    evaluate=EvalConfig(bootstrap=0),
)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run of two steps on the shapes world, with a relation and a moving average."""
    out = tmp_path_factory.mktemp("run") / "shapes"
    return run(CONFIG, "shapes-lt", out, Display(quiet=True))


def _checkpoint(out: Path) -> Path:
    return next((out / "checkpoints").glob("*.safetensors"))


def _state(**values) -> State:
    model = create_model("resnet20-cifar", 2)
    preprocess = DataConfig(image_size=16, normalise="half")
    state = State(values={"model": to_dict(ModelConfig(name="resnet20-cifar")), "class_names": ["ox", "ant"]} | values)
    state.values.setdefault("preprocess", Preprocess.from_config(preprocess).to_dict())
    state.add("model", model.state_dict())
    return state


def test_the_model_is_the_plain_one(trained_run):
    trained = load(trained_run.path)
    assert trained.model.state_dict().keys() == create_model("resnet20-cifar", 20).state_dict().keys()
    saved = load_checkpoint(_checkpoint(trained_run.path)).part("model")
    assert any(name.startswith("relation.") for name in saved)  # there was something to leave out
    assert relatum.attached_relation(trained.model) is None
    assert not trained.model.training
    assert trained.class_names == NAMES[:20]
    assert trained.preprocess == Preprocess.from_config(CONFIG.data)
    assert trained.settings == CONFIG.model
    assert trained.kwargs == {"img_size": 16}


def test_it_scores_what_the_run_scored(trained_run):
    loaders = build_loaders(CONFIG.data)
    scores = evaluate(load(trained_run.path).model, loaders.evals["test"], loaders.prior, config=CONFIG.evaluate)
    assert scores.nll == pytest.approx(trained_run.scores["test"].nll, rel=1e-6)
    assert scores.confusion == trained_run.scores["test"].confusion
    again = evaluate_run(trained_run.path, EvalConfig(bootstrap=0, shot_rule="thirds"))["test"]
    assert again.nll == pytest.approx(scores.nll, rel=1e-6)
    assert (again.rule, scores.rule) == ("thirds", "standard")


def test_the_moving_average_is_preferred_where_there_is_one(trained_run, tmp_path):
    state = load_checkpoint(_checkpoint(trained_run.path))
    averaged, last = state.part("ema"), state.part("model")
    name = next(iter(load(trained_run.path).model.state_dict()))
    assert not torch.equal(averaged[name], last[name])
    assert torch.equal(load(trained_run.path).model.state_dict()[name], averaged[name])
    state.tensors = {key: tensor for key, tensor in state.tensors.items() if not key.startswith("ema.")}
    assert torch.equal(load(save_checkpoint(tmp_path, state, 1)).model.state_dict()[name], last[name])


def test_eval_outputs_equal_those_of_the_weights_that_were_saved(trained_run):
    model = create_model("resnet20-cifar", 20)
    saved = load_checkpoint(_checkpoint(trained_run.path)).part("ema")
    model.load_state_dict({name: tensor for name, tensor in saved.items() if not name.startswith("relation.")})
    images = torch.randn(5, 3, 16, 16)
    assert torch.equal(model.eval()(images), load(trained_run.path).model(images))


def test_image_files_are_predicted_with_names_and_probabilities(trained_run, tmp_path):
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{side}.png" for side in (16, 40, 23)]
    for path in paths:
        side = int(path.stem)
        Image.fromarray(random.integers(0, 256, (side, side + 5, 3), dtype=np.uint8)).save(path)
    trained = load(trained_run.path)
    found = list(trained.predict_files(paths, top=3, batch_size=2))
    assert [path for path, _ in found] == paths
    for path, predictions in found:
        pixels = np.asarray(Image.open(path))
        expected = trained.model(trained.preprocess(pixels).unsqueeze(0)).softmax(1)[0]
        names = [trained.class_names[k] for k in expected.argsort(descending=True)[:3]]
        assert [name for name, _ in predictions] == names
        assert [value for _, value in predictions] == pytest.approx(
            expected.sort(descending=True)[0][:3].tolist(), rel=1e-4
        )
    assert len(next(trained.predict_files(paths[:1], top=99))[1]) == 20
    everything = trained.probabilities([np.zeros((9, 9, 3), np.uint8)])
    assert everything.shape == (1, 20)
    assert float(everything.sum()) == pytest.approx(1.0, rel=1e-5)


def test_a_broken_image_is_named(trained_run, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken.png"):
        list(load(trained_run.path).predict_files([tmp_path / "broken.png"]))


def test_the_image_size_reaches_models_that_have_one(tmp_path):
    settings = ModelConfig(name="test_vit")
    model = create_model("test_vit", 2, img_size=32)
    assert model.pos_embed.shape != create_model("test_vit", 2).pos_embed.shape
    state = _state(model=to_dict(settings), model_kwargs={"img_size": 32})
    state.tensors = {}
    state.add("model", model.state_dict())
    back = load(save_checkpoint(tmp_path, state, 1))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(back.model(images), model.eval()(images))


def test_a_cosine_head_comes_back_with_its_scale(tmp_path):
    settings = ModelConfig(name="resnet20-cifar", head="cosine", scale=7.0)
    model = create_model("resnet20-cifar", 2, head="cosine", scale=7.0)
    state = _state(model=to_dict(settings))
    state.tensors = {}
    state.add("model", model.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(load(save_checkpoint(tmp_path, state, 1)).model(images), model.eval()(images))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_places_without_a_run_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no run at"):
        load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="usable checkpoint"):
        load(tmp_path)
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="not a readable relatum checkpoint"):
        load(str(tmp_path / "text.txt"))


@pytest.mark.parametrize("missing", ["model", "class_names", "preprocess"])
def test_a_checkpoint_that_does_not_say_how_to_build_its_model_says_so(tmp_path, missing):
    state = _state()
    del state.values[missing]
    with pytest.raises(CheckpointError, match="does not say how to build its model"):
        load(save_checkpoint(tmp_path, state, 1))


def test_weights_that_do_not_fit_are_one_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="do not fit the model 'resnet20-cifar'"):
        load(save_checkpoint(tmp_path, _state(class_names=["a", "b", "c"]), 1))


def test_a_fall_back_to_an_older_checkpoint_is_said(tmp_path):
    for step in (1, 2):
        newest = save_checkpoint(tmp_path / "checkpoints", _state(), step)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step-000000002.* Falling back"):
        load(tmp_path)


# -- image files -------------------------------------------------------------------------------------------------------


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.JPG", "a.png", "deep/c.webp", "notes.txt"):
        (tmp_path / name).touch()
    assert image_files([tmp_path]) == [tmp_path / "a.png", tmp_path / "b.JPG", tmp_path / "deep/c.webp"]
    assert image_files([str(tmp_path / "notes.txt")]) == [tmp_path / "notes.txt"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there are no images in"):
        image_files([tmp_path / "empty"])
    with pytest.raises(DataError, match="there is no file or folder"):
        image_files([tmp_path / "nowhere"])


# -- the run directory of a recipe -------------------------------------------------------------------------------------


def test_a_recipe_leaves_everything_the_other_rooms_read(trained_run):
    out = trained_run.path
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "config.toml",
        "manifest.json",
        "metrics.jsonl",
        "scores.json",
        "checkpoints",
    }
    manifest = json.loads((out / "manifest.json").read_text())
    promised = {"recipe", "relatum", "versions", "hardware", "git", "seed", "class_names", "class_counts", "command"}
    promised |= {"relation_batch", "parameters", "selection", "status", "seconds", "images_per_second"}
    assert promised <= set(manifest)
    assert (manifest["recipe"], manifest["status"], manifest["relation_batch"]) == ("shapes-lt", "finished", 16)
    assert sum(manifest["class_counts"]) == build_loaders(CONFIG.data).prior.counts.sum()
