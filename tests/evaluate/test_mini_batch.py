"""Mini-batch inference scores the related stream, with any number of sites."""

import pytest
import timm
import torch

from relatum import BatchFormerV2, ClassPrior, attach, evaluate
from relatum.config import EvalConfig
from relatum.errors import ConfigError

PRIOR = ClassPrior([5, 5, 5])


def vit():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=16, patch_size=8, depth=3)


def batches():
    generator = torch.Generator().manual_seed(1)
    x = 3 * torch.randn(40, 3, 16, 16, generator=generator)
    return [(x[:24], torch.arange(24) % 3), (x[24:], torch.arange(16) % 3)]


def test_it_scores_the_related_stream():
    model = vit()
    relation = attach(model, BatchFormerV2(at="all", variant="paper"))
    plain = evaluate(model, batches(), PRIOR)
    scores = evaluate(model, batches(), PRIOR, config=EvalConfig(mini_batch=True))
    assert scores.adjustment == "mini-batch inference" and plain.adjustment == "none"
    with relation.inference(), torch.no_grad():
        related = torch.cat([relation.split(model.eval()(x))[1] for x, _ in batches()])
    targets = torch.cat([y for _, y in batches()])
    expected = torch.nn.functional.cross_entropy(related.double(), targets).item()
    assert scores.nll == pytest.approx(expected, rel=1e-5)
    assert plain.nll != pytest.approx(expected, rel=1e-3)


def test_without_a_relation_it_is_refused():
    with pytest.raises(ConfigError, match="no relation"):
        evaluate(vit(), batches(), PRIOR, config=EvalConfig(mini_batch=True))
