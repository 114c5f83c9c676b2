"""When the related stream takes part: its share against a written-out line, and a relation at rest against none."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from relatum import BatchFormer, BatchFormerV2, attach, create_model
from relatum.config import RelationConfig
from relatum.errors import ConfigError
from relatum.relation import Presence
from relatum.relation.build import presence


def test_a_stream_is_all_there_unless_asked_otherwise():
    assert [Presence().share(done) for done in (0.0, 0.3, 0.999)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.25, 0.75), (0.9, 1.0), (0.0, 0.1)])
def test_the_share_falls_on_a_line(start, end):
    for step in range(100):
        done = step / 100
        line = 1 - (done - start) / (end - start)
        assert Presence(start, end).share(done) == pytest.approx(max(0.0, min(1.0, line)), abs=1e-12)


def test_the_same_start_and_end_switch_it_off_at_once():
    sharp = Presence(0.3, 0.3)
    # Three of ten epochs, as the loop counts them, and the step before.
    assert [sharp.share(done) for done in (0.0, 2.99 / 10, 3 / 10, 0.1 + 0.2, 0.9)] == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_rounding_does_not_move_the_end():
    counted = [(step // 10 + step % 10 / 10) / 10 for step in range(1, 100)]  # ten epochs of ten steps, as in the loop
    assert any(done < step / 100 for step, done in enumerate(counted, 1))
    assert [Presence(0.0, step / 100).share(done) for step, done in enumerate(counted, 1)] == [0.0] * 99


@pytest.mark.parametrize("wrong", [(0.8, 0.5), (-0.1, 0.5), (0.5, 1.1)])
def test_an_order_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError, match="in that order"):
        Presence(*wrong)


def test_no_step_with_a_relation_is_refused():
    assert Presence(0.0, 0.1).share(0.0) == Presence(0.1, 0.1).share(0.0) == 1.0  # there is a step
    with pytest.raises(ConfigError, match="no step with a relation"):
        Presence(0.0, 0.0)


def test_settings_arrive_and_what_has_no_effect_is_refused():
    assert presence(RelationConfig()) == Presence()
    assert presence(RelationConfig(fade_start=0.4, fade_end=0.9)) == Presence(0.4, 0.9)
    with pytest.raises(ConfigError, match="in that order"):
        presence(RelationConfig(fade_end=0.5))  # without fade_start
    for one in ({"shared_classifier": False}, {"two_streams": False}):
        with pytest.raises(ConfigError, match="but there is one"):
            presence(RelationConfig(fade_start=0.5, **one))
    with pytest.raises(ConfigError, match="released"):
        presence(RelationConfig(fade_start=0.5, streams="released"))


def _images(n=8):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


HOSTS = {
    "cnn": ("resnet20-cifar", BatchFormer()),
    "cnn, BatchNorm behind the site": ("resnet20-cifar", BatchFormerV2(at="layer1", tokens="all")),
    "vit": ("vit-nano-p8", BatchFormerV2(at="all", share=True)),
    "a part": ("vit-nano-p8", BatchFormerV2(at="last", related_fraction=0.5)),
    "single stream": ("resnet20-cifar", BatchFormer(shared_classifier=False)),
}


@pytest.mark.parametrize(("name", "spec"), HOSTS.values(), ids=HOSTS.keys())
def test_at_rest_the_model_trains_as_if_there_were_no_relation(name, spec):
    torch.manual_seed(0)
    plain = create_model(name, 5).train()
    model = copy.deepcopy(plain)
    relation = attach(model, spec)
    y = torch.arange(8) % 5
    assert not torch.equal(model(_images()), plain(_images()))
    model.load_state_dict(plain.state_dict(), strict=False)  # the pass has moved the statistics of BatchNorm

    relation.resting = True
    torch.manual_seed(7)
    logits = model(_images())
    drawn = torch.rand(1)
    assert relation.stream_names == ("plain",) and relation.targets(y) is y and not relation.active
    functional.cross_entropy(logits, relation.targets(y)).backward()
    assert all(p.grad is None for p in relation.module.parameters())
    torch.manual_seed(7)
    expected = plain(_images())
    assert torch.equal(torch.rand(1), drawn), "no random number was drawn for the relation"
    functional.cross_entropy(expected, y).backward()
    assert torch.equal(logits, expected)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, model.get_parameter(name).grad), name
    assert all(torch.equal(buffer, model.get_buffer(name)) for name, buffer in plain.named_buffers())

    relation.resting = False
    assert relation.active and not torch.equal(model(_images()), expected)


def test_a_relation_at_rest_detaches_as_exactly_and_answers_inference():
    torch.manual_seed(0)
    model = create_model("resnet20-cifar", 5)
    keys, hooks = list(model.state_dict()), [len(m._forward_pre_hooks) for m in model.modules()]
    relation = attach(model, BatchFormer())
    relation.resting = True
    with relation.inference():
        assert model.eval()(_images()).shape == (16, 5)
    before = model(_images())
    assert list(model.state_dict()) != keys
    relation.detach()
    assert list(model.state_dict()) == keys
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert torch.equal(model(_images()), before)


def test_a_copy_rests_by_itself():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    relation = attach(model, BatchFormer(heads=2))
    twin = copy.deepcopy(model)
    relation.resting = True
    x = torch.randn(6, 3, 2, 2)
    with pytest.warns(UserWarning, match="relation batch"):
        assert (model(x).shape, twin(x).shape) == ((6, 3), (12, 3))
