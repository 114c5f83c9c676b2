"""Features: gathered in order without augmentation, their parts assigned, the model left alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from relatum import ClassPrior, create_model, loaders_from_splits
from relatum.classifier import CachedFeatures, FeatureSet, cache_features, fold, linear_classifier
from relatum.classifier.features import train_in_order
from relatum.config import DataConfig
from relatum.data import ArraySource
from relatum.errors import DataError, ModelError

SIZES = {"train": 24, "val": 9, "test": 12}


def _loaders(splits=("train", "val", "test"), **settings):
    draw = np.random.default_rng(0)
    sources = {
        name: ArraySource(draw.integers(0, 256, (SIZES[name], 8, 8, 3), dtype=np.uint8), np.arange(SIZES[name]) % 3)
        for name in splits
    }
    config = DataConfig(**{"image_size": 8, "batch_size": 5, "eval_batch_size": 7, "workers": 0, **settings})
    return loaders_from_splits(sources, config), sources


class Small(nn.Module):
    """Flatten, hidden layer, dropout, classifier."""

    def __init__(self, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.fc, self.after = nn.Linear(6, 3), after or nn.Identity()

    def forward(self, x):
        return self.after(self.fc(self.body(x)))


def _expected(model, source, preprocess):
    images = torch.stack([preprocess(source.load(i)) for i in range(len(source))])
    with torch.no_grad():
        return copy.deepcopy(model).eval().body(images)


@pytest.mark.parametrize("memory", ["auto", "never"])
def test_features_are_those_of_every_image_in_order(memory):
    loaders, sources = _loaders(memory=memory)
    assert (loaders.train.images is None) == (memory == "never")
    model = Small()
    found = cache_features(model, loaders)
    for part, name in ((found.train, "train"), (found.held, "val"), (found.reported["test"], "test")):
        torch.testing.assert_close(part.features, _expected(model, sources[name], loaders.preprocess))
        assert part.targets.tolist() == sources[name].targets.tolist()
    assert found.held_from == "val" and list(found.reported) == ["test"]
    assert found.prior is loaders.prior


def test_a_margin_that_evaluation_crops_is_cropped_here_too():
    loaders, sources = _loaders(resize=12)
    model = Small()
    assert loaders.train.images is not None and train_in_order(loaders).images is None
    found = cache_features(model, loaders)
    torch.testing.assert_close(found.train.features, _expected(model, sources["train"], loaders.preprocess))


def test_the_model_is_afterwards_as_before():
    model = Small().train()
    model.body[2].eval()
    before = copy.deepcopy(model.state_dict())
    seen = []
    cache_features(model, _loaders()[0], progress=seen.append)
    assert sum(seen) == sum(SIZES.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training and not model.body[2].training
    model.body[2].train()
    model(torch.randn(4, 3, 8, 8))  # what the comparison would have noticed
    assert not torch.equal(before["body.2.running_mean"], model.state_dict()["body.2.running_mean"])


def test_without_two_further_splits_a_share_of_training_is_held_out():
    loaders, _ = _loaders(("train", "test"))
    found = cache_features(Small(), loaders, holdout=0.25, seed=1)
    assert found.held_from == "train" and list(found.reported) == ["test"]
    assert found.held.targets.bincount().tolist() == [2, 2, 2] and len(found.train) == 24
    rows = {tuple(row) for row in found.train.features.tolist()}
    assert all(tuple(row) in rows for row in found.held.features.tolist())
    other = cache_features(Small(), loaders, holdout=0.25, seed=2)
    again = CachedFeatures.from_splits({"train": found.train, **found.reported}, holdout=0.25, seed=1)
    assert torch.equal(again.held.features, found.held.features)
    assert not torch.equal(other.held.features, found.held.features)
    only_val = CachedFeatures.from_splits({"train": found.train, "val": found.train})
    assert only_val.held_from == "train" and list(only_val.reported) == ["val"]


def test_folding_changes_the_classifier_and_nothing_else():
    model = Small()
    _, head = linear_classifier(model)
    new = nn.Linear(6, 3)
    before = copy.deepcopy(model.state_dict())
    folded = fold(model, new)
    assert type(folded) is Small
    changed = {name for name, tensor in folded.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"fc.weight", "fc.bias"}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert linear_classifier(model)[1] is head
    x = torch.randn(5, 3, 8, 8)
    assert torch.equal(folded.eval()(x), new(model.eval().body(x)))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_classifiers_that_are_not_one_linear_layer_are_named_with_a_cure():
    cosine = create_model("resnet20-cifar", 3, head="cosine")
    with pytest.raises(ModelError, match=r"is a CosineClassifier; .* --model.head linear"):
        cache_features(cosine, _loaders()[0])
    with pytest.raises(ModelError, match="has 2 classifiers"):
        linear_classifier(create_model("deit_tiny_distilled_patch16_224", 3, img_size=32, depth=1))
    with pytest.raises(ModelError, match="changes the output of its classifier"):
        cache_features(Small(nn.Tanh()), _loaders()[0])


@pytest.mark.parametrize("head", [nn.Linear(6, 4), nn.Linear(5, 3), nn.Linear(6, 3, bias=False)])
def test_a_head_of_another_shape_is_not_folded(head):
    with pytest.raises(ModelError, match="does not fit the classifier 'fc'"):
        fold(Small(), head)


def test_features_that_cannot_be_are_refused():
    good = FeatureSet(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"give \(N, C\)"):
        FeatureSet(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(DataError, match="soft labels"):
        FeatureSet(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(DataError, match="no split 'train'"):
        CachedFeatures.from_splits({"test": good})
    with pytest.raises(DataError, match="split 'test' has class ids outside 0 to 0"):
        CachedFeatures.from_splits(
            {"train": FeatureSet(torch.zeros(1, 3), torch.tensor([0])), "test": good}, ClassPrior([1])
        )
