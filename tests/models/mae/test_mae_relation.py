"""BatchFormerV2 on the decoder: two streams, one mask, targets repeated by whoever knows of the streams."""

from __future__ import annotations

import copy

import pytest
import torch

import relatum
from relatum.errors import ModelError
from relatum.models.mae import create_mae, reconstruction_loss

EVERY_BLOCK = ("decoder.blocks.0", "decoder.blocks.1", "decoder.blocks.2")


def model_and_batch():
    model = create_mae("vit-pico-p4", img_size=16, decoder_depth=3)
    return model, torch.randn(8, 3, 16, 16), torch.rand(8, 16)


def wake(relation):
    """Move every parameter of the relation, so that the related stream cannot equal the plain one."""
    with torch.no_grad():
        for parameter in relation.module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


@pytest.mark.parametrize("at", [EVERY_BLOCK, "decoder.blocks.0-2", ("decoder.blocks.2",)])
def test_the_plain_half_is_the_prediction_of_the_plain_model(at):
    model, images, noise = model_and_batch()
    alone = model(images, noise=noise)
    relation = relatum.attach(model, relatum.BatchFormerV2(at=at))
    wake(relation)
    both = model(images, noise=noise)
    assert both.prediction.shape == (16, 16, 48)
    plain, related = relation.split(both.prediction)
    assert not torch.allclose(related, alone.prediction, atol=1e-3)
    torch.testing.assert_close(plain, alone.prediction, atol=1e-6, rtol=1e-6)
    assert torch.equal(both.mask, alone.mask)
    assert torch.equal(both.targets, alone.targets)


def test_the_loss_over_both_streams_is_the_mean_of_theirs_and_reaches_the_relation():
    model, images, noise = model_and_batch()
    relation = relatum.attach(model, relatum.BatchFormerV2(at=EVERY_BLOCK))
    wake(relation)
    output = model(images, noise=noise)
    loss = reconstruction_loss(output.prediction, relation.targets(output.targets), relation.targets(output.mask))
    parts = [reconstruction_loss(p, output.targets, output.mask) for p in relation.split(output.prediction)]
    assert not torch.allclose(parts[0], parts[1])
    torch.testing.assert_close(loss, sum(parts) / 2)
    loss.backward()
    relation.check_gradients()


def test_the_convenient_loss_refuses_two_streams_and_returns_after_detach():
    model, images, noise = model_and_batch()
    wanted = model(images, noise=noise).loss
    keys = set(model.state_dict())
    relation = relatum.attach(model, relatum.BatchFormerV2(at=EVERY_BLOCK))
    wake(relation)
    with pytest.raises(ModelError, match="repeat both targets and mask"):
        _ = model(images, noise=noise).loss
    assert torch.equal(model.eval()(images, noise=noise).loss, wanted)
    relation.detach()
    assert torch.equal(model.train()(images, noise=noise).loss, wanted)
    assert set(model.state_dict()) == keys


def test_a_fraction_of_the_batch_in_the_related_stream():
    model, images, noise = model_and_batch()
    relation = relatum.attach(model, relatum.BatchFormerV2(at=EVERY_BLOCK, related_fraction=0.5))
    wake(relation)
    output = model(images, noise=noise)
    assert output.prediction.shape[0] == 12
    targets, mask = relation.targets(output.targets), relation.targets(output.mask)
    assert torch.equal(mask[8:], output.mask[relation.chosen])
    assert reconstruction_loss(output.prediction, targets, mask).isfinite()


def test_one_stream_has_a_loss_of_its_own():
    model, images, noise = model_and_batch()
    before = model(images, noise=noise).loss
    relation = relatum.attach(model, relatum.BatchFormerV2(at=EVERY_BLOCK, two_streams=False))
    wake(relation)
    output = model(images, noise=noise)
    assert output.prediction.shape[0] == 8
    assert not torch.allclose(output.loss, before)


@pytest.mark.parametrize("at", ["encoder.blocks.0", "all"])
def test_a_relation_inside_the_encoder_is_refused(at):
    model, images, noise = model_and_batch()
    relatum.attach(model, relatum.BatchFormerV2(at=at))
    with pytest.raises(ModelError, match="belongs to the decoder"):
        model(images, noise=noise)


def test_a_copy_of_an_attached_model_has_both_streams_too():
    model, images, noise = model_and_batch()
    relatum.attach(model, relatum.BatchFormerV2(at=EVERY_BLOCK, dropout=0.0))
    twin = copy.deepcopy(model)
    assert torch.equal(twin(images, noise=noise).prediction, model(images, noise=noise).prediction)


@pytest.mark.parametrize("two_streams", [True, False])
def test_patches_out_of_their_places_are_not_related(two_streams):
    model, images, noise = model_and_batch()
    relation = relatum.attach(model, relatum.BatchFormerV2(at=("decoder.blocks.2",), two_streams=two_streams))
    with pytest.raises(ModelError, match="call the autoencoder without hidden_only"):
        model(images, noise=noise, hidden_only=True)
    relation.detach()
    assert model(images, noise=noise, hidden_only=True).prediction.shape == (8, 12, 48)
