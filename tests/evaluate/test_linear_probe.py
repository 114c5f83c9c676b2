"""The linear probe against scikit-learn, its statistics, and both probes over the splits of a run."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from relatum.config import DataConfig
from relatum.data import from_arrays, loaders_from_splits
from relatum.errors import ConfigError, DataError, ModelError
from relatum.evaluate import Scores
from relatum.evaluate.knn import knn_logits
from relatum.evaluate.linear_probe import LinearProbe, linear_probe
from relatum.evaluate.probe import encode_splits, probe_encoder, probe_features
from relatum.models import create_model
from relatum.models.mae import create_mae
from relatum.prior import ClassPrior

FAST = LinearProbe(epochs=5, batch_size=64)
NAMES = ("red", "green", "blue")


def _features(n=150, width=7, classes=3, seed=0, counts=None):
    """Overlapping classes in float64 whose features differ in scale and place; `counts` fixes how many of each."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    labels = torch.arange(n) % classes if counts is None else torch.repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), width, generator=draw, dtype=torch.float64)
    stretch = 10.0 ** torch.linspace(-2, 2, width, dtype=torch.float64)
    return (centres[labels] + noise) * stretch + 5 * stretch, labels


def _prior(labels, classes=3):
    return ClassPrior.from_targets(labels.numpy(), num_classes=classes)


def test_it_finds_the_optimum_of_logistic_regression():
    features, labels = _features()
    penalty = 0.01
    settings = LinearProbe(epochs=400, lr=0.1, penalty=penalty, batch_size=1000)
    found = linear_probe(features, labels, _prior(labels), settings)
    scaled = StandardScaler().fit_transform(features.numpy())
    right = LogisticRegression(C=1 / (len(labels) * penalty), tol=1e-10, max_iter=5000).fit(scaled, labels.numpy())
    test, _ = _features(seed=1)
    wanted = right.predict_proba(StandardScaler().fit(features.numpy()).transform(test.numpy()))
    np.testing.assert_allclose(found(test).softmax(1).detach().numpy(), wanted, atol=2e-4)
    # The biases share a constant that changes nothing; the penalised weights have one optimum only.
    np.testing.assert_allclose(found[1].weight.detach().numpy(), right.coef_, atol=2e-3)
    other = linear_probe(
        features, labels, _prior(labels), LinearProbe(epochs=400, lr=0.1, penalty=0.1, batch_size=1000)
    )
    assert np.abs(other[1].weight.detach().numpy() - right.coef_).max() > 0.05


def test_the_default_settings_come_close_to_the_optimum_in_float32():
    features, labels = _features(n=1500)
    found = linear_probe(features.float(), labels, _prior(labels))
    scaler = StandardScaler().fit(features.numpy())
    right = LogisticRegression(C=1 / (1500 * 1e-4), max_iter=5000).fit(
        scaler.transform(features.numpy()), labels.numpy()
    )
    test, _ = _features(seed=1)
    mine = found(test.float()).softmax(1).detach().double().numpy()
    assert mine.dtype == np.float64 and found[1].weight.dtype == torch.float32
    assert np.abs(mine - right.predict_proba(scaler.transform(test.numpy()))).mean() < 0.02


def test_the_statistics_are_those_of_all_training_features():
    features, labels = _features()
    found = linear_probe(features, labels, _prior(labels), FAST)
    norm, layer = found
    assert isinstance(norm, nn.BatchNorm1d) and isinstance(layer, nn.Linear) and len(found) == 2
    assert norm.weight is None and norm.bias is None and not found.training
    np.testing.assert_allclose(norm.running_mean, features.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.running_var, features.numpy().var(0), rtol=1e-12)
    standard = norm(features)
    np.testing.assert_allclose(standard.mean(0), np.zeros(7), atol=1e-9)
    np.testing.assert_allclose(standard.std(0, correction=0), np.ones(7), atol=1e-2)
    # A sample's answer does not depend on its companions: no batch statistics.
    assert torch.allclose(found(features[:1]), found(features)[:1], rtol=1e-12)


def test_a_constant_feature_does_no_harm():
    features, labels = _features()
    features = torch.cat([features, torch.full((len(features), 1), 1234.5678)], dim=1).float()
    found = linear_probe(features, labels, _prior(labels), FAST)
    assert found(features).isfinite().all()
    assert found[0](features)[:, -1].abs().max() < 0.5


def test_same_seed_same_bits_and_global_randomness_is_left_alone():
    features, labels = _features()
    before = torch.get_rng_state()
    weights = [
        linear_probe(features, labels, _prior(labels), LinearProbe(epochs=2, batch_size=64, seed=s))[1].weight
        for s in (0, 1, 0)
    ]
    assert not torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    assert torch.equal(before, torch.get_rng_state())


def test_the_first_weights_are_small():
    features = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50)
    start = linear_probe(features, labels, _prior(labels, 50), LinearProbe(epochs=1, lr=0.0))
    assert start[1].weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert (start[1].bias == 0).all()


def test_balanced_softmax_lifts_the_rare_class():
    features, labels = _features(counts=[200, 40, 6])
    test, truth = _features(seed=1, n=300)
    prior = _prior(labels)
    hits = {}
    for objective in ("cross-entropy", "balanced-softmax"):
        predicted = linear_probe(features, labels, prior, LinearProbe(objective, epochs=40))(test).argmax(1)
        hits[objective] = [(predicted[truth == c] == c).double().mean().item() for c in range(3)]
    assert hits["balanced-softmax"][2] > hits["cross-entropy"][2] + 0.05
    assert hits["balanced-softmax"][0] < hits["cross-entropy"][0]


@pytest.mark.parametrize("objective", ["cross-entropy", "balanced-softmax"])
def test_a_class_never_seen_is_never_answered(objective):
    features, labels = _features()
    found = linear_probe(features, labels, _prior(labels, 5), LinearProbe(objective, epochs=30))
    logits = found(features)
    assert logits.shape == (150, 5) and logits.isfinite().all()
    assert logits.argmax(1).max() <= 2


def test_progress_counts_the_epochs():
    features, labels = _features()
    seen = []
    linear_probe(features, labels, _prior(labels), FAST, lambda *step: seen.append(step))
    assert seen == [("linear probe", done, 5) for done in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LinearProbe("balanced-sofmax"), "did you mean 'balanced-softmax'"),  # type: ignore[arg-type]
        (LinearProbe(epochs=0), "at least 1"),
        (LinearProbe(penalty=-1.0), "at least 0"),
        (LinearProbe(batch_size=0), "at least 1"),
    ],
)
def test_settings_out_of_range(settings, words):
    features, labels = _features()
    with pytest.raises(ConfigError, match=words):
        linear_probe(features, labels, _prior(labels), settings)


def test_features_that_cannot_be_probed():
    features, labels = _features()
    with pytest.raises(DataError, match="no training samples"):
        linear_probe(features[:0], labels[:0], _prior(labels))
    with pytest.raises(DataError, match="149 targets for 150"):
        linear_probe(features, labels[:-1], _prior(labels))
    with pytest.raises(DataError, match="out of range for 2 classes"):
        linear_probe(features, labels, ClassPrior([100, 50]))
    with pytest.raises(ModelError, match="not finite"):
        linear_probe(features / 0, labels, _prior(labels))


# Both probes over the splits of a run.


def _colours(images, seed, side=16):
    draw = np.random.default_rng(seed)
    targets = np.sort(np.arange(images) % 3)
    pixels = draw.normal(110, 30, (images, side, side, 3))
    pixels[np.arange(images), :, :, targets] += 30
    return from_arrays(pixels.clip(0, 255).astype(np.uint8), targets, NAMES)


def _loaders(train=60, evals=("val", "test"), side=16, **data):
    config = DataConfig(image_size=16, batch_size=8, eval_batch_size=7, workers=0, normalise="half", **data)
    sources = {"train": _colours(train, 0, side), **{name: _colours(18, 5 + i, side) for i, name in enumerate(evals)}}
    return loaders_from_splits(sources, config)


def _encoder():
    torch.manual_seed(0)
    return create_mae("vit-pico-p4", img_size=16).encoder


@pytest.mark.parametrize("memory", ["auto", "never"])
@pytest.mark.parametrize(("side", "augment"), [(16, "weak"), (16, "crop"), (20, "weak")])
def test_training_images_are_seen_once_in_order_without_augmentation(memory, side, augment):
    # Images of 20 pixels lose a margin at evaluation, but not in what training keeps in memory.
    settings = {"memory": memory, "augment": augment, "mixup": 0.5, "sampler": "class-balanced"}
    loaders = _loaders(side=side, resize=side, **settings)
    assert (loaders.train.images is None) == (memory == "never")
    encoder = _encoder().train()
    splits = encode_splits(encoder, loaders, pool="avg")
    source = loaders.train.source
    images = torch.stack([loaders.preprocess(source.load(i)) for i in range(len(source))])
    with torch.no_grad():
        wanted = encoder.eval().forward_features(images)[:, 1:].mean(1)
    torch.testing.assert_close(splits.train[0], wanted, atol=1e-5, rtol=1e-4)
    assert splits.train[1].tolist() == source.targets.tolist()
    assert list(splits.evals) == ["val", "test"] and splits.evals["test"][0].shape == (18, 64)


def test_the_pool_chooses_the_features():
    loaders = _loaders()
    found = {pool: encode_splits(_encoder(), loaders, pool=pool).train[0] for pool in ("default", "token", "avg")}
    assert not torch.allclose(found["avg"], found["token"])
    torch.testing.assert_close(found["default"], found["token"])  # by rounding: it computes no other tokens at the end


def test_both_probes_score_every_split_with_shot_groups():
    loaders, encoder = _loaders(), _encoder()
    steps = []
    found = probe_encoder(
        encoder, loaders, pool="avg", k=5, bootstrap=20, settings=FAST, progress=lambda *step: steps.append(step)
    )
    assert list(found) == ["k-nn", "linear"] and all(list(by) == ["val", "test"] for by in found.values())
    for by in found.values():
        assert isinstance(by["val"], Scores) and by["val"].split == "val" and by["val"].samples == 18
        assert by["val"].interval is not None and by["val"].rule == "standard"
        assert {name: group["classes"] for name, group in by["val"].groups.items()} == {
            "many": 0,
            "medium": 3,
            "few": 0,
        }
        assert by["test"].top1 > 0.6  # three colours: chance is a third
    assert steps[-6] == ("features", 96, 96) and steps[-1] == ("linear probe", 5, 5)
    splits = encode_splits(encoder, loaders, pool="avg")
    logits = knn_logits(*splits.train, splits.evals["test"][0], 3, 5)
    assert found["k-nn"]["test"].top1 == (logits.argmax(1) == splits.evals["test"][1]).double().mean().item()


def test_options_reach_the_scores():
    splits = encode_splits(_encoder(), _loaders())
    prior = _prior(splits.train[1])
    plain = probe_features(splits, prior, methods=["k-nn"], bootstrap=0)["k-nn"]["val"]
    other = probe_features(splits, prior, methods=["k-nn"], bootstrap=0, balanced=True, rule="thirds", k=3)["k-nn"][
        "val"
    ]
    assert (plain.adjustment, plain.rule, plain.interval) == ("none", "standard", None)
    assert (other.adjustment, other.rule) == ("votes divided by class frequency", "thirds")
    assert other.nll != plain.nll


def test_a_convolutional_classifier_has_features_too():
    torch.manual_seed(0)
    model = create_model("resnet20-cifar", 3)
    loaders = _loaders(evals=("val",))
    found = probe_encoder(model, loaders, methods=("linear",), settings=FAST, bootstrap=0)
    assert list(found) == ["linear"] and found["linear"]["val"].classes == 3
    for pool in ("avg", "token"):
        with pytest.raises(ModelError, match="with tokens to pool"):
            encode_splits(model, loaders, pool=pool)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"methods": ("knn",)}, ConfigError, "did you mean 'k-nn'"),
        ({"methods": ()}, ConfigError, "no probe was named"),
        ({"k": 61}, ConfigError, "only 60 training samples"),
        ({"k": 0}, ConfigError, "at least one neighbour"),
        ({"temperature": -1.0}, ConfigError, "above 0"),
        ({"rule": "third"}, ConfigError, "thirds"),
        ({"settings": LinearProbe(epochs=0)}, ConfigError, "at least 1"),
        ({"pool": "mean"}, ModelError, "unknown pool"),
    ],
)
def test_mistakes_are_found_before_an_image_is_read(options, error, words, monkeypatch):
    loaders = _loaders()
    # By sys.modules: the room may export the function of the same name.
    module = sys.modules["relatum.evaluate.probe"]
    monkeypatch.setattr(module, "collect", lambda *_, **__: pytest.fail("images were read"))
    with pytest.raises(error, match=words):
        probe_encoder(_encoder(), loaders, **options)


def test_without_an_evaluation_split_there_is_nothing_to_score():
    with pytest.raises(DataError, match="no evaluation split"):
        probe_encoder(_encoder(), _loaders(evals=()), k=3)
