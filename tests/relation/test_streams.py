from collections import namedtuple

import numpy as np
import pytest
import torch

from relatum.errors import ModelError
from relatum.relation import repeat_targets, split_streams

Pair = namedtuple("Pair", "labels weight")


def test_tensors_arrays_lists_and_dicts_are_repeated_stream_after_stream():
    targets = {
        "labels": torch.tensor([1, 2, 3]),
        "soft": torch.eye(3),
        "boxes": [{"id": 0}, {"id": 1}, {"id": 2}],
        "domain": np.array([7, 8, 9]),
        "nested": (torch.tensor([4, 5, 6]), 0.3),
    }
    twice = repeat_targets(targets)
    assert twice["labels"].tolist() == [1, 2, 3, 1, 2, 3]
    assert torch.equal(twice["soft"], torch.cat([torch.eye(3), torch.eye(3)]))
    assert [b["id"] for b in twice["boxes"]] == [0, 1, 2, 0, 1, 2]
    assert twice["domain"].tolist() == [7, 8, 9, 7, 8, 9]
    assert twice["nested"][0].tolist() == [4, 5, 6, 4, 5, 6]
    assert targets["labels"].tolist() == [1, 2, 3], "the original stays"


def test_what_belongs_to_the_whole_batch_stays():
    weight = torch.tensor(0.4)
    again = repeat_targets(Pair(torch.tensor([1, 2]), weight))
    assert isinstance(again, Pair) and again.weight is weight and again.labels.tolist() == [1, 2, 1, 2]
    assert repeat_targets("mixup") == "mixup" and repeat_targets(None) is None


def test_split_undoes_repeat_in_any_nesting():
    x = torch.randn(3, 4)
    output = {"logits": repeat_targets(x), "heads": (repeat_targets(x), repeat_targets(x + 1))}
    plain, related = split_streams(output)
    assert torch.equal(plain["logits"], x) and torch.equal(related["logits"], x)
    assert torch.equal(related["heads"][1], x + 1)


def test_an_odd_output_cannot_be_two_streams():
    with pytest.raises(ModelError, match="evaluation mode"):
        split_streams(torch.randn(3, 4))
