"""Two streams in the encoders of detectors: position codes, masks and labels are doubled at the door, by name."""

import copy
import math

import pytest
import torch
from hosts import assert_never_attached
from torch import nn

from relatum import BatchFormerV2, attach

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("scipy", reason="scipy is not installed: the matching of boxes needs it")

FIRST = "model.encoder.layers.0"
DETECTORS = ("Detr", "ConditionalDetr", "DeformableDetr")
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def build(kind):
    """A small detector with random weights; Deformable DETR has 4 levels, so a batch of 4 invites confusion."""
    deformable = kind == "DeformableDetr"
    stages = ["stage1", "stage2"] if deformable else ["stage2"]
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    layers = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "num_queries": 4, "dropout": 0.0}
    for part in ("encoder", "decoder"):
        layers |= {f"{part}_attention_heads": 2, f"{part}_ffn_dim": 16}
    backbone = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    backbone["backbone_config"] = transformers.ResNetConfig(**sizes, out_features=stages)
    levels = {"num_feature_levels": 4} if deformable else {}
    config = getattr(transformers, f"{kind}Config")(**backbone, **layers, **levels, num_labels=3)
    model = getattr(transformers, f"{kind}ForObjectDetection")(config)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)  # the usual initialisation predicts almost the same everywhere
    return model.train()


@pytest.fixture(params=DETECTORS, scope="module")
def detector(request):
    torch.manual_seed(1)
    return build(request.param)


def batch(n):
    """Images with padding on the right of the first one, and one box each."""
    mask = torch.ones(n, 64, 64, dtype=torch.long)
    mask[0, :, 40:] = 0
    labels = [{"class_labels": torch.tensor([k % 3]), "boxes": torch.tensor([[0.5, 0.5, 0.3, 0.4]])} for k in range(n)]
    return {"pixel_values": torch.randn(n, 3, 64, 64), "pixel_mask": mask, "labels": labels}


def attached(detector, at, **options):
    model, never = copy.deepcopy(detector), copy.deepcopy(detector)
    torch.manual_seed(2)
    return attach(model, BatchFormerV2(at=at, dropout=0.0, **options)), model, never


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("at", "fraction"), [(FIRST, 1.0), ("all", 1.0), ("all", 0.5)])
def test_plain_stream_is_the_unattached_detector(detector, at, fraction, n):
    relation, model, never = attached(detector, at, related_fraction=fraction)
    assert relation.sites == ((FIRST,) if at == FIRST else (FIRST, "model.encoder.layers.1"))
    inputs, seen = batch(n), []
    backbone = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    backbone.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    model.get_submodule(FIRST).register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    out, expected = model(**inputs), never(**inputs)
    assert seen == [n, len(out.logits)], "the backbone runs once, on the images as given; the encoder on both streams"
    assert len(out.logits) == n + math.ceil(fraction * n)
    for mine, theirs in ((out.logits, expected.logits), (out.pred_boxes, expected.pred_boxes)):
        plain, related = relation.split(mine)
        assert (related - relation.in_related(theirs)).abs().max() > 1e-5
        # Kernels differ with the number of rows, and from processor to processor: a few units in the last place.
        torch.testing.assert_close(plain, theirs, rtol=1e-6, atol=1e-6)


def test_the_loss_is_that_of_both_streams(detector):
    relation, model, never = attached(detector, FIRST)
    inputs = batch(3)
    out, alone = model(**inputs), never(**inputs)
    doubled = relation.targets(inputs["labels"])
    assert len(doubled) == 6 and doubled[3] is inputs["labels"][0]
    again = never.loss_function(out.logits, doubled, "cpu", out.pred_boxes, never.config)[0]
    assert not torch.allclose(out.loss, alone.loss, rtol=1e-7, atol=0)
    torch.testing.assert_close(out.loss, again)
    out.loss.backward()
    relation.check_gradients()
    parts = relation.split({"logits": out.logits, "loss": out.loss})
    assert parts[0]["logits"].shape == parts[1]["logits"].shape


def test_samples_meet_in_the_related_stream_only(detector):
    relation, model, _ = attached(detector, "all")
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    inputs = batch(3)
    x = inputs["pixel_values"].requires_grad_(True)
    plain, related = relation.split(model(pixel_values=x, pixel_mask=inputs["pixel_mask"]).logits)
    (met,) = torch.autograd.grad(related[0].square().sum(), x, retain_graph=True)
    assert all(met[k].any() for k in range(3))
    (alone,) = torch.autograd.grad(plain[0].square().sum(), x)
    assert alone[0].any() and not alone[1:].any()


def test_evaluation_is_untouched_and_detach_is_exact(detector):
    relation, model, never = attached(detector, "all")
    inputs = batch(2)
    assert model(**inputs).logits.shape[0] == 4 and never(**inputs).logits.shape[0] == 2
    assert set(model.state_dict()) > set(never.state_dict())
    expected = never.eval()(**inputs)
    assert torch.equal(model.eval()(**inputs).logits, expected.logits)
    with relation.inference("related"):
        related = model(**inputs)
        assert related.logits.shape == expected.logits.shape and not torch.equal(related.logits, expected.logits)
    assert relation.detach() is model
    assert_never_attached(model, never)
    out = model(**inputs)
    assert torch.equal(out.logits, expected.logits) and torch.equal(out.pred_boxes, expected.pred_boxes)
    assert torch.equal(model.train()(**inputs).loss, never.train()(**inputs).loss)
