"""A part of the batch as the related stream: counting, choosing, targets, and whom the chosen attend to."""

import math
from collections import namedtuple
from fractions import Fraction

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from relatum import BatchFormer, BatchFormerV2, attach
from relatum.errors import ConfigError, ModelError
from relatum.relation.streams import plain_count, related_count, split_streams

CLASSES = 5
Heads = namedtuple("Heads", "main side")
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def vit(name="vit_tiny_patch16_224"):
    sizes = {"img_size": 16, "patch_size": 8, "depth": 3, "embed_dim": 32, "num_heads": 4}
    torch.manual_seed(1)
    return timm.create_model(name, num_classes=CLASSES, **sizes).train()


def attached(fraction, spec=BatchFormerV2, **options):
    options = {"at": "blocks.0-1"} if spec is BatchFormerV2 and not options else options
    model = vit()
    torch.manual_seed(2)
    return model, attach(model, spec(dropout=0.0, related_fraction=fraction, **options))


def images(n=8):
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(n))


@settings(max_examples=300, deadline=None)
@given(n=st.integers(1, 300), fraction=st.floats(0.001, 1) | st.sampled_from([k / 20 for k in range(1, 21)]))
def test_the_counts_are_inverse_to_each_other(n, fraction):
    m = related_count(n, fraction)
    assert 1 <= m <= n
    assert plain_count(n + m, fraction) == n


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 10, 20])
def test_the_count_is_the_fraction_rounded_up_without_binary_noise(parts):
    for k in range(1, parts):
        for n in range(1, 301):
            assert related_count(n, k / parts) == math.ceil(Fraction(k, parts) * n)


def test_rows_that_cannot_be_two_streams_are_refused():
    assert plain_count(12, 0.5) == 8
    with pytest.raises(ModelError, match="cannot split 10 rows"):
        plain_count(10, 0.5)


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
@pytest.mark.parametrize("spec", [BatchFormer, BatchFormerV2])
def test_senseless_fractions_are_refused(spec, fraction):
    with pytest.raises(ConfigError, match="related_fraction"):
        spec(related_fraction=fraction)


@pytest.mark.parametrize("single", [BatchFormer, BatchFormerV2])
def test_a_single_stream_needs_everyone(single):
    option = "shared_classifier" if single is BatchFormer else "two_streams"
    with pytest.raises(ConfigError, match="plain stream"):
        single(related_fraction=0.5, **{option: False})


@pytest.mark.parametrize("spec", [BatchFormer, BatchFormerV2])
def test_targets_of_any_structure_follow_the_chosen_samples(spec):
    model, relation = attached(0.5, spec)
    out = model(images())
    chosen = relation.chosen.tolist()
    assert len(out) == 12 and len(set(chosen)) == 4 and set(chosen) < set(range(8))
    y = torch.arange(8)
    structure = {
        "y": y,
        "soft": torch.eye(8),
        "list": list("abcdefgh"),
        "array": np.arange(8),
        "rate": 0.5,
        "pair": (y,),
    }
    both = relation.targets(structure)
    assert both["y"].tolist() == both["array"].tolist() == both["pair"][0].tolist() == [*range(8), *chosen]
    assert "".join(both["list"]) == "abcdefgh" + "".join("abcdefgh"[k] for k in chosen)
    assert both["soft"].argmax(1).tolist() == [*range(8), *chosen] and both["rate"] == 0.5
    streams = relation.stream_targets(structure)
    assert streams["plain"] is structure or streams["plain"]["y"] is y
    assert streams["related"]["y"].tolist() == chosen
    parts = relation.streams(out)
    assert len(parts["plain"]) == 8 and len(parts["related"]) == len(relation.in_related(parts["plain"])) == 4
    assert torch.equal(relation.in_related(y), relation.chosen)
    model.eval()
    assert relation.targets(y) is y and list(relation.stream_targets(y)) == ["plain"]


def test_named_outputs_are_split_as_such():
    plain, related = split_streams(Heads(torch.arange(12), [torch.arange(12)]), 0.5)
    assert isinstance(plain, Heads) and plain.main.tolist() == list(range(8))
    assert related.side[0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("variant", ["paper", "stable"])
@pytest.mark.parametrize("spec", [BatchFormer, BatchFormerV2])
def test_the_chosen_attend_to_the_whole_batch(spec, variant):
    options = {"at": "blocks.0-1"} if spec is BatchFormerV2 else {}
    model, relation = attached(0.25, spec, variant=variant, **options)
    x = images().requires_grad_(True)
    plain, related = relation.split(model(x))
    (met,) = torch.autograd.grad(related[0] @ torch.randn(CLASSES), x, retain_graph=True)
    assert len(related) == 2 and all(met[j].abs().max() > 0 for j in range(8))
    (alone,) = torch.autograd.grad(plain[3] @ torch.randn(CLASSES), x)
    assert alone[3].any() and not alone[[0, 1, 2, 4, 5, 6, 7]].any()


def test_with_one_site_the_chosen_rows_are_those_of_the_whole_related_stream():
    (some, relation), (everyone, whole) = attached(0.5, at="blocks.1"), attached(1.0, at="blocks.1")
    everyone.load_state_dict(some.state_dict())
    plain, related = relation.split(some(images()))
    all_plain, all_related = whole.split(everyone(images()))
    torch.testing.assert_close(plain, all_plain)
    torch.testing.assert_close(related, all_related[relation.chosen], rtol=1e-5, atol=1e-5)


def test_the_whole_batch_is_no_choice_at_all():
    model, relation = attached(1.0)
    state = torch.get_rng_state()
    first = model(images())
    assert relation.chosen is None and torch.equal(torch.get_rng_state(), state), "no random number is spent"
    assert torch.equal(model(images()), first)
    assert relation.targets(torch.arange(8)).tolist() == [*range(8), *range(8)]


@pytest.mark.parametrize("spec", [BatchFormer, BatchFormerV2])
def test_each_pass_chooses_anew_and_a_seed_decides_it(spec):
    model, relation = attached(0.5, spec)

    def choices(seed):
        torch.manual_seed(seed)
        return [(model(images()), tuple(relation.chosen.tolist()))[1] for _ in range(4)]

    assert len(set(choices(3))) > 1
    assert choices(3) == choices(3) != choices(4)


@pytest.mark.parametrize("spec", [BatchFormer(related_fraction=0.5), BatchFormerV2(related_fraction=0.5)])
def test_two_heads_have_the_same_rows(spec):
    model = vit("deit_tiny_distilled_patch16_224")
    model.set_distilled_training(True)
    relation = attach(model, spec)
    plain, related = relation.split(model(images()))
    assert [len(head) for head in plain] == [8, 8] and [len(head) for head in related] == [4, 4]
    assert isinstance(plain, tuple) and len(relation.targets(torch.arange(8))) == 12


def test_heads_that_run_in_any_order_agree_on_the_choice():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.first, self.second = nn.Linear(12, 8), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

        def get_classifier(self):
            return self.first, self.second

        def forward(self, x):
            x = self.body(x)
            return self.second(x), self.first(x)

    model = Two()
    relation = attach(model, BatchFormer(related_fraction=0.5, dropout=0.0))
    relation.module[1].load_state_dict(relation.module[0].state_dict())
    model.first.load_state_dict(model.second.state_dict())
    for _ in range(3):
        one, two = model(torch.randn(8, 12))
        # The same weights give the same rows, if the samples are the same.
        torch.testing.assert_close(one, two)
        assert not torch.allclose(one[8:], relation.in_related(one[:8]), atol=1e-3)
