"""k nearest neighbours against a loop in float64, what must not change their answer, and `relatum probe`."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.config_files import to_dict, to_toml
from relatum.data import Preprocess
from relatum.errors import CheckpointError, ConfigError, DataError, ModelError
from relatum.evaluate import Scores, score
from relatum.evaluate.knn import FLOOR, knn_logits
from relatum.evaluate.probe_verb import probe
from relatum.models import create_model
from relatum.models.mae import create_mae
from relatum.prior import ClassPrior
from relatum.train.checkpoint import State, save_checkpoint

K = 5


def _data(m=60, n=23, width=6, seed=0, classes=K):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (m,), generator=draw)
    return torch.randn(m, width, generator=draw), targets, torch.randn(n, width, generator=draw)


def _by_loop(train, targets, queries, classes, k, temperature, balanced=False):
    """Votes of the k nearest, one query and one neighbour at a time; no ties in the data."""
    shares = np.zeros((len(queries), classes))
    for i, query in enumerate(queries.double().numpy()):
        cosines = []
        for row in train.double().numpy():
            cosines.append(float(query @ row) / (math.sqrt(query @ query) * math.sqrt(row @ row)))
        for j in sorted(range(len(cosines)), key=lambda j: -cosines[j])[:k]:
            vote = math.exp(cosines[j] / temperature)
            if balanced:
                vote /= sum(int(t) == int(targets[j]) for t in targets) / len(targets)
            shares[i, int(targets[j])] += vote
        shares[i] /= shares[i].sum()
    return shares


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (7, 0.07), (20, 0.5), (60, 0.07)])
def test_shares_of_the_votes_equal_the_loop(k, temperature, balanced):
    train, targets, queries = _data()
    found = knn_logits(train, targets, queries, K, k, temperature, balanced=balanced)
    wanted = _by_loop(train, targets, queries, K, k, temperature, balanced)
    assert found.dtype == torch.float32 and found.shape == (23, K)
    np.testing.assert_allclose(found.exp().double().numpy(), wanted + FLOOR, atol=5e-6)
    exact = knn_logits(train.double(), targets, queries.double(), K, k, temperature, balanced=balanced)
    np.testing.assert_allclose(exact.exp().numpy(), wanted + FLOOR, rtol=1e-9)


def test_balanced_votes_help_the_rare_class():
    train, _, queries = _data()
    targets = torch.zeros(60, dtype=torch.long)
    targets[::12] = 1
    plain, balanced = (knn_logits(train, targets, queries, 2, balanced=b).softmax(1)[:, 1] for b in (False, True))
    voted = plain > 1e-6
    assert voted.any() and (balanced[voted] > plain[voted]).all()


@pytest.mark.parametrize("chunk", [1, 2, 7, 23, 1000])
def test_the_chunk_changes_nothing(chunk):
    train, targets, queries = _data()
    train = train.repeat(2, 1)  # every neighbour twice: places are shared at an odd k
    targets = torch.cat([targets, (targets + 1) % K])
    whole = knn_logits(train, targets, queries, K, 7)
    assert not torch.allclose(whole, knn_logits(train, targets, queries, K, 8), atol=1e-3)
    torch.testing.assert_close(knn_logits(train, targets, queries, K, 7, chunk=chunk), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_the_order_of_the_training_samples_changes_nothing_even_with_ties(k):
    train, targets, queries = _data()
    train = torch.cat([train, train[:30], train[:30]])
    targets = torch.cat([targets, (targets[:30] + 1) % K, (targets[:30] + 2) % K])
    here = knn_logits(train, targets, queries, K, k)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1))
    assert not torch.equal(train[order], train)
    assert not torch.allclose(knn_logits(train, targets[order], queries, K, k), here, atol=1e-2)  # labels matter
    torch.testing.assert_close(knn_logits(train[order], targets[order], queries, K, k), here, atol=1e-5, rtol=0)


def test_equal_neighbours_share_the_last_places():
    # One is nearest; four are equally far behind it and compete for the second and third place.
    train = torch.tensor([[1.0, 0.0]] + [[0.6, 0.8]] * 4 + [[-1.0, 0.0]])
    targets = torch.tensor([0, 1, 1, 1, 2, 3])
    shares = knn_logits(train, targets, torch.tensor([[2.0, 0.0]]), 4, k=3, temperature=0.4).exp()[0]
    far = math.exp((0.6 - 1.0) / 0.4)
    wanted = torch.tensor([1.0, 2 * far * 3 / 4, 2 * far / 4, 0.0]) / (1 + 2 * far)
    torch.testing.assert_close(shares, wanted, atol=1e-6, rtol=0)


def test_a_collapsed_encoder_answers_with_the_class_frequencies():
    targets = torch.tensor([0] * 6 + [1] * 3 + [2])
    for feature in (torch.ones(1, 4), torch.zeros(1, 4)):  # zeros have no direction at all
        train = feature.expand(10, 4)
        shares = knn_logits(train, targets, feature, 3, k=2).exp()[0]
        torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=1e-6, rtol=0)
        even = knn_logits(train, targets, feature, 3, k=2, balanced=True).exp()[0]
        torch.testing.assert_close(even, torch.full((3,), 1 / 3), atol=1e-6, rtol=0)


def test_the_length_of_a_feature_does_not_matter_and_a_cold_temperature_is_finite():
    train, targets, queries = _data()
    here = knn_logits(train, targets, queries, K)
    lengths = torch.linspace(0.1, 10, 60)[:, None]
    assert not torch.allclose(knn_logits(train + lengths, targets, queries, K), here, atol=1e-2)
    torch.testing.assert_close(knn_logits(train * lengths, targets, queries * 3, K), here, atol=1e-4, rtol=0)
    cold = knn_logits(train, targets, queries, K, temperature=1e-4)
    nearest = knn_logits(train, targets, queries, K, k=1)
    assert cold.isfinite().all() and torch.equal(cold.argmax(1), nearest.argmax(1))


def test_a_class_without_training_samples_has_a_finite_logit_and_scores_have_shot_groups():
    train, targets, queries = _data(m=160, n=12, classes=4)
    targets = torch.cat([torch.zeros(110, dtype=torch.long), torch.ones(40, dtype=torch.long), targets[:10] % 2 + 2])
    prior = ClassPrior.from_targets(targets.numpy(), num_classes=5)
    logits = knn_logits(train, targets, queries, 5, balanced=True)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:, 4], torch.full((12,), math.log(FLOOR)))
    scores = score(logits, torch.arange(12) % 5, prior, bootstrap=0)
    assert {name: group["classes"] for name, group in scores.groups.items()} == {"many": 1, "medium": 1, "few": 3}
    assert scores.per_class[4]["accuracy"] == 0.0 and list(scores.row()) == ["All", "Many", "Medium", "Few", "ECE"]


def test_it_finds_what_is_easy_to_find():
    draw = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(K, 8, generator=draw)
    labels = torch.arange(50) % K
    train, test = (centres[labels] + torch.randn(50, 8, generator=draw) for _ in range(2))
    assert score(knn_logits(train, labels, test, K, 5), labels, bootstrap=0).top1 > 0.95


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"k": 0}, ConfigError, "at least one neighbour"),
        ({"k": 61}, ConfigError, "only 60 training samples; lower k"),
        ({"temperature": 0.0}, ConfigError, "above 0"),
        ({"temperature": float("nan")}, ConfigError, "above 0"),
        ({"chunk": -1}, ConfigError, "chunk"),
        ({"num_classes": 0}, ConfigError, "at least one class"),
        ({"num_classes": 3}, DataError, "out of range for 3 classes"),
        ({"features": torch.ones(4, 5)}, ModelError, "width 6, the others 5"),
        ({"features": torch.ones(0, 6)}, DataError, "no samples to classify"),
        ({"features": torch.full((2, 6), torch.nan)}, ModelError, "not finite"),
        ({"features": torch.ones(6)}, ModelError, r"must be \(samples, width\)"),
        ({"train_features": torch.ones(0, 6)}, DataError, "no training samples"),
        ({"train_targets": torch.zeros(59, dtype=torch.long)}, DataError, "59 targets for 60"),
        ({"train_targets": torch.ones(60)}, DataError, "whole-number"),
    ],
)
def test_errors_name_cause_and_cure(change, error, words):
    train, targets, queries = _data()
    good = {"train_features": train, "train_targets": targets, "features": queries, "num_classes": K}
    knn_logits(**good)
    with pytest.raises(error, match=words):
        knn_logits(**(good | change))


# The verb, on run directories as the two stages leave them.

NAMES = ("ant", "bee", "cat")
CONFIG = RunConfig(
    data=DataConfig(kind="folder", image_size=32, normalise="half", workers=0),
    model=ModelConfig(name="vit-pico-p8"),
    train=TrainConfig(device="cpu"),
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten files of each of three classes that differ a little, two of each held out."""
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(30):
        (root / NAMES[i % 3]).mkdir(exist_ok=True)
        pixels = draw.integers(0, 200 + 5 * (i % 3), (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / NAMES[i % 3] / f"{i}.png")
    return root


def _run(folder, photos, state):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(replace(CONFIG, data=replace(CONFIG.data, root=str(photos)))))
    save_checkpoint(folder / "checkpoints", state, 1)
    return folder


@pytest.fixture
def pretrained(tmp_path, photos):
    """A run whose only stage was pretraining, at half the image size."""
    torch.manual_seed(0)
    state = State(values={"masked": {"name": "vit-pico-p8", "img_size": 16}})
    state.add("model", create_mae("vit-pico-p8", img_size=16).state_dict())
    _run(tmp_path / "run" / "pretrain", photos, state)
    return tmp_path / "run"


@pytest.fixture
def fine_tuned(tmp_path, photos):
    torch.manual_seed(1)
    values = {"model": to_dict(CONFIG.model), "model_kwargs": {"img_size": 32}, "class_names": list(NAMES)}
    state = State(values={**values, "preprocess": Preprocess.from_config(CONFIG.data).to_dict()})
    state.add("model", create_model("vit-pico-p8", 3, img_size=32).state_dict())
    return _run(tmp_path / "tuned", photos, state)


def _shown(capsys, *words):
    assert probe([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_verb_prints_a_table(pretrained, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    out = _shown(capsys, pretrained, "--k", 5, "--epochs", 2, "--pool", "avg", "--shot-rule", "thirds")
    head = next(line for line in out.splitlines() if "method" in line)
    assert all(word in head for word in ("All", "Many (1)", "Medium (1)", "Few (1)", "ECE"))
    assert "k-nn (val)" in out and "linear (val)" in out
    assert out.splitlines()[-1].startswith("24 training images, features of width 64, ")


def test_a_stage_its_run_and_its_checkpoint_are_the_same_encoder(pretrained, capsys):
    file = next((pretrained / "pretrain" / "checkpoints").glob("*.safetensors"))
    words = ("--k", 3, "--methods", "k-nn", "--json")
    found = [json.loads(_shown(capsys, place, *words)) for place in (pretrained, pretrained / "pretrain", file)]
    assert found[0] == found[1] == found[2]
    assert Scores.from_dict(found[0]["k-nn"]["val"]).classes == 3
    assert found[0] != json.loads(_shown(capsys, pretrained, *words, "--pool", "avg"))
    words = ("--k", 3, "--methods", "k-nn", "--json", "--balanced")
    assert json.loads(_shown(capsys, pretrained, *words))["k-nn"]["val"]["adjustment"] != "none"


def test_a_fine_tuned_run_is_probed_before_its_classifier(fine_tuned, capsys):
    out = json.loads(_shown(capsys, fine_tuned, "--k", 3, "--methods", "linear", "--epochs", 2, "--json"))
    assert list(out) == ["linear"] and out["linear"]["val"]["samples"] == 6
    other = ("--k", 3, "--methods", "linear", "--epochs", 2, "--json", "--objective", "balanced-softmax")
    assert json.loads(_shown(capsys, fine_tuned, *other)) != out


def test_the_verb_refuses_what_it_cannot_do(pretrained, tmp_path):
    with pytest.raises(ConfigError, match="'knn'; did you mean 'k-nn'"):
        probe([str(pretrained), "--methods", "knn"])
    with pytest.raises(ConfigError, match="at least 1"):
        probe([str(pretrained), "--epochs", "0"])
    with pytest.raises(ConfigError, match="only 24 training samples"):
        probe([str(pretrained), "--k", "5000"])
    with pytest.raises(DataError, match="nowhere"):
        probe([str(pretrained), "--data-root", "nowhere"])
    with pytest.raises(CheckpointError, match=r"no config\.toml"):
        probe([str(tmp_path)])
    (tmp_path / "config.toml").write_text(to_toml(CONFIG))  # settings, but nothing trained
    with pytest.raises(CheckpointError, match="usable checkpoint"):
        probe([str(tmp_path)])
