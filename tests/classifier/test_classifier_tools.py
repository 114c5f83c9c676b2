"""The registry and `retune`: every tool on its own, scored on what is reported, with notes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from relatum.classifier import CRT, LWS, TOOLS, CachedFeatures, LogitAdjustment, TauNorm, Temperature, fold, retune
from relatum.classifier.disalign import DisAlign
from relatum.errors import ConfigError, DataError
from relatum.evaluate import score

QUICK = (
    CRT(least_steps=60),
    LWS(least_steps=60),
    TauNorm(),
    DisAlign(least_steps=60),
    LogitAdjustment(),
    Temperature(),
)


@pytest.fixture(scope="module")
def results(features, head):
    return retune(features, head, QUICK, rule="standard", bootstrap=0)


def test_the_registry_names_all_tools():
    assert list(TOOLS) == ["crt", "lws", "tau-norm", "disalign", "logit-adjustment", "temperature"]
    assert [TOOLS[tool.name] for tool in QUICK] == [type(tool) for tool in QUICK]
    assert [name for name, tool in TOOLS.items() if not tool.foldable] == ["disalign"]


def test_every_tool_is_scored_on_the_reported_split(features, head, results):
    assert list(results) == ["as trained", *TOOLS]
    test = features.reported["test"]
    for name, result in results.items():
        with torch.no_grad():
            expected = score(result.head(test.features), test.targets, features.prior, bootstrap=0)
        found = result.scores["test"]
        assert list(result.scores) == ["test"]
        assert (found.top1, found.ece, found.groups) == (expected.top1, expected.ece, expected.groups)
        assert found.adjustment == ("none" if name == "as trained" else result.tool.describe())
    words = {result.scores["test"].adjustment for result in results.values()}
    assert len(words) == len(results)


def test_chosen_settings_are_in_the_result_and_repeat_it(features, head, results):
    assert {name: list(result.chosen) for name, result in results.items() if result.chosen} == {
        "tau-norm": ["tau"],
        "temperature": ["value"],
    }
    settled = results["tau-norm"].tool
    assert settled.tau == results["tau-norm"].chosen["tau"]
    assert torch.equal(settled.fit(features, head).weight, results["tau-norm"].head.weight)
    assert f"tau {settled.tau:.4g}" in settled.describe() and "to be chosen" in TauNorm().describe()


def test_tools_do_not_build_on_one_another(features, head, results):
    before = copy.deepcopy(head.state_dict())
    alone = retune(features, head, [LWS(least_steps=60)])["lws"].head
    assert torch.equal(alone.weight, results["lws"].head.weight)
    assert torch.equal(results["as trained"].head.weight, head.weight)
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())


def test_foldable_heads_make_the_same_plain_model(features, head, results):
    model = nn.Sequential(nn.Identity(), copy.deepcopy(head))
    x = features.reported["test"].features
    for name, result in results.items():
        if result.tool.foldable:
            folded = fold(model, result.head)
            assert folded.state_dict().keys() == model.state_dict().keys()
            assert torch.equal(folded(x), result.head(x)), name
            assert torch.equal(folded(x), model(x)) == (name == "as trained")


def test_results_are_json(results):
    for name, result in results.items():
        entry = json.loads(json.dumps(result.to_dict()))
        assert entry["method"] == name and entry["chosen"] == result.chosen
        assert entry["scores"]["test"]["top1"] == result.scores["test"].top1
    assert results["crt"].to_dict()["settings"]["lr"] == 0.2
    assert results["disalign"].to_dict()["foldable"] is False


def test_settings_chosen_on_training_images_are_marked(features, head, results):
    assert not any(result.notes for result in results.values())
    own = CachedFeatures.from_splits({"train": features.train, "test": features.reported["test"]})
    marked = retune(own, head, [TauNorm(), Temperature(), LogitAdjustment()])
    assert (
        "comes out too low" in marked["temperature"].notes[0] and "'val' beside 'test'" in marked["tau-norm"].notes[0]
    )
    assert marked["logit-adjustment"].notes == ()  # nothing was chosen
    assert retune(own, head, [LogitAdjustment(None)])["logit-adjustment"].notes
    assert retune(own, head, [Temperature(2.0)])["temperature"].notes == ()


def test_a_temperature_at_its_bound_is_said(features, head):
    sure = nn.Linear(4, 3)
    sure.load_state_dict({name: 1e-3 * tensor for name, tensor in head.state_dict().items()})
    assert "at the end of what is searched" in retune(features, sure, ["temperature"])["temperature"].notes[0]


def test_mistakes_are_named(features, head):
    with pytest.raises(ConfigError, match="unknown classifier tool 'tau_norm'; did you mean 'tau-norm'"):
        retune(features, head, ["tau_norm"])
    with pytest.raises(ConfigError, match=r"named twice \(crt, crt\)"):
        retune(features, head, ["crt", CRT()])
    bare = CachedFeatures.from_splits({"train": features.train})
    with pytest.raises(DataError, match="no split to report on"):
        retune(bare, head)
