"""The autoencoder: an ordinary encoder, visible tokens only, equal to an independent implementation."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from relatum.errors import ConfigError, ModelError
from relatum.models import create_model
from relatum.models.mae import MaskedAutoencoder, create_mae, patchify, reconstruction_loss, sincos_positions

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}


def vit(img_size=16, patch=4, classes=5, **kwargs) -> VisionTransformer:
    sizes = {**SMALL, "img_size": img_size, "patch_size": patch, "num_classes": classes, **kwargs}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


def mae(img_size=16, patch=4, **kwargs) -> MaskedAutoencoder:
    return MaskedAutoencoder(vit(img_size, patch), 16, 2, 2, **kwargs)


def test_shapes_and_loss():
    model = mae()
    output = model(torch.randn(3, 3, 16, 16))
    assert output.prediction.shape == output.targets.shape == (3, 16, 48)
    assert output.mask.shape == output.ids_restore.shape == (3, 16)
    assert output.ids_keep.shape == (3, 4)
    assert torch.equal(output.loss, reconstruction_loss(output.prediction, output.targets, output.mask))
    output.loss.backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {"encoder.pos_embed"}  # frozen; everything else trains
    assert not model.encoder.pos_embed.requires_grad


@pytest.mark.parametrize("watched", [False, True])
def test_the_hidden_patches_alone_have_the_same_predictions_loss_and_gradients(watched):
    model, images = mae().double(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    if watched:  # then the last block of the decoder computes all tokens
        model.decoder.blocks[-1].register_forward_hook(lambda *_: None)
    noise = torch.rand(3, 16, dtype=torch.float64)
    whole, found = model(images, noise=noise), []
    part = model(images, noise=noise, hidden_only=True)
    hidden = noise.argsort(1)[:, 4:]
    for row in range(3):
        torch.testing.assert_close(part.prediction[row], whole.prediction[row][hidden[row]])
        torch.testing.assert_close(part.targets[row], whole.targets[row][hidden[row]])
    assert part.mask.shape == (3, 12) and part.mask.all() and torch.equal(part.ids_restore, whole.ids_restore)
    for output in (whole, part):
        model.zero_grad()
        output.loss.backward()
        found.append([output.loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_rectangular_images():
    model = mae(img_size=(8, 24))
    assert model.grid == (2, 6)
    output = model(torch.randn(2, 3, 8, 24))
    assert output.prediction.shape == (2, 12, 48)
    assert torch.equal(model.encoder.pos_embed, sincos_positions((2, 6), 32))
    assert torch.equal(model.decoder.pos_embed, sincos_positions((2, 6), 16))


def test_the_encoder_loads_into_timms_model_with_nothing_missing_but_the_head():
    model = mae()
    fresh = vit()
    result = fresh.load_state_dict(model.encoder.state_dict(), strict=False)
    assert set(result.missing_keys) == {"head.weight", "head.bias"}
    assert not result.unexpected_keys
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(fresh.eval().forward_features(images), model.encoder.eval().forward_features(images))


def test_without_hidden_patches_the_encoder_is_timms():
    """All patches kept, in order: the projection by matrix and the own handling of positions change nothing."""
    model = mae().double().eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    everything = torch.arange(16).expand(2, -1)
    wanted = model.encoder.forward_features(images)
    torch.testing.assert_close(model.encode(patchify(images, 4), everything), wanted)
    shuffled = torch.stack([torch.randperm(16), torch.randperm(16)])
    codes = model.encode(patchify(images, 4), shuffled)
    assert not torch.allclose(codes, wanted)
    unshuffled = torch.stack([codes[n, 1:][shuffled[n].argsort()] for n in range(2)])
    torch.testing.assert_close(unshuffled, wanted[:, 1:])


def test_hidden_patches_do_not_reach_the_prediction():
    model = mae().eval()
    images, noise = torch.randn(2, 3, 16, 16), torch.rand(2, 16)
    output = model(images, noise=noise)

    def changed(where):
        patches = patchify(images, 4).clone()
        patches[where] += 1
        cells = patches.view(2, 4, 4, 4, 4, 3).permute(0, 5, 1, 3, 2, 4)
        return model(cells.reshape(2, 3, 16, 16), noise=noise)

    assert not torch.allclose(changed(~output.mask).prediction, output.prediction)
    assert torch.equal(changed(output.mask).prediction, output.prediction)


def test_the_encoder_blocks_see_visible_tokens_only():
    model = mae()
    seen = []
    model.encoder.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    model(torch.randn(3, 3, 16, 16))
    assert seen == [(3, 1 + 4, 32)]


def test_the_mask_comes_from_the_generator_or_the_noise():
    model = mae()
    images = torch.randn(3, 3, 16, 16)
    first, again, other = (model(images, torch.Generator().manual_seed(s)).mask for s in (1, 1, 2))
    assert not torch.equal(first, other)
    assert torch.equal(first, again)
    noise = torch.rand(3, 16)
    assert torch.equal(model(images, noise=noise).ids_keep, noise.argsort(1)[:, :4])
    with pytest.raises(ConfigError, match="not both"):
        model(images, torch.Generator(), noise)
    with pytest.raises(ModelError, match=r"noise of the mask is \(3, 9\)"):
        model(images, noise=torch.rand(3, 9))


@pytest.mark.parametrize("kind", ["block", "grid"])
def test_other_masks_run(kind):
    output = mae(mask=kind, ratio=0.5)(torch.randn(2, 3, 16, 16))
    assert output.ids_keep.shape == (2, 8)
    assert output.loss.isfinite()


def test_raw_pixels_are_the_targets_on_request():
    images = torch.randn(2, 3, 16, 16) + 3
    assert not torch.allclose(mae()(images).targets, patchify(images, 4))
    raw = mae(normalised=False)
    output = raw(images)
    assert torch.equal(output.targets, patchify(images, 4))
    assert torch.equal(raw.restore(output.targets, images), output.targets)
    normal = mae()
    torch.testing.assert_close(normal.restore(normal(images).targets, images), patchify(images, 4))


def test_initial_weights():
    torch.manual_seed(1)
    model = MaskedAutoencoder(vit(embed_dim=64), 32, 1, 2)
    linears = {
        "encoder.blocks.0.attn.qkv": (64, 192),
        "encoder.blocks.1.mlp.fc1": (64, 256),
        "decoder.embed": (64, 32),
        "decoder.blocks.0.mlp.fc2": (128, 32),
        "decoder.pred": (32, 48),
        "encoder.patch_embed.proj": (48, 64),
    }
    for name, (fan_in, fan_out) in linears.items():
        layer = model.get_submodule(name)
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.97 * bound < float(layer.weight.detach().abs().max()) <= bound, name
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.06), name
        assert not layer.bias.any(), name
    for token in (model.encoder.cls_token, model.decoder.mask_token):
        assert 0.01 < float(token.detach().std()) < 0.03
    norms = [part for part in model.modules() if isinstance(part, torch.nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 1 + 2 + 1
    assert {norm.eps for norm in norms} == {1e-6}
    assert not any(isinstance(part, torch.nn.Dropout) and part.p for part in model.modules())


def test_an_encoder_with_weights_can_keep_them():
    encoder = vit()
    before = copy.deepcopy(encoder.state_dict())
    kept = MaskedAutoencoder(copy.deepcopy(encoder), 16, 1, 2, initialise=False).encoder.state_dict()
    fresh = MaskedAutoencoder(encoder, 16, 1, 2).encoder.state_dict()
    assert not torch.equal(fresh["pos_embed"], before["pos_embed"])
    assert set(kept) == set(fresh) == set(before) - {"head.weight", "head.bias"}
    assert all(torch.equal(kept[key], before[key]) for key in kept)


def test_gradient_checkpointing_of_the_encoder_changes_no_gradient():
    model, noise, images = mae(), torch.rand(2, 16), torch.randn(2, 3, 16, 16)
    twin = copy.deepcopy(model)
    twin.encoder.set_grad_checkpointing()
    for each in (model, twin):
        each(images, noise=noise).loss.backward()
    weights = model.encoder.blocks[0].attn.qkv.weight, twin.encoder.blocks[0].attn.qkv.weight
    assert weights[0].grad.any()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_autocast_and_channels_last():
    model, noise, images = mae(), torch.rand(2, 16), torch.randn(2, 3, 16, 16)
    wanted = model(images, noise=noise).loss
    last = model(images.contiguous(memory_format=torch.channels_last), noise=noise).loss
    torch.testing.assert_close(last, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(images, noise=noise)
    assert output.prediction.dtype == torch.bfloat16
    assert output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, wanted, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"img_size": 18}, r"18 x 18 pixels .* whole patches of 4; .* 16 x 16"),
        ({"class_token": False, "global_pool": "avg"}, r"one class token .* and .*global_pool='token'"),
        ({"reg_tokens": 2}, "reg_tokens=0"),
        ({"no_embed_class": True}, "no_embed_class=False"),
        ({"dynamic_img_size": True}, "dynamic_img_size=False"),
        ({"global_pool": "avg"}, "global_pool='token'"),
        ({"patch_drop_rate": 0.5}, "patch_drop_rate=0"),
    ],
)
def test_encoders_that_do_not_fit_are_refused(kwargs, words):
    with pytest.raises(ModelError, match=words):
        MaskedAutoencoder(vit(**kwargs), 16, 1, 2)


def test_other_models_are_refused():
    with pytest.raises(ModelError, match=r"needs a timm VisionTransformer .* not CifarResNet"):
        MaskedAutoencoder(create_model("resnet20-cifar", 3), 16, 1, 2)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"ratio": 1.2}, "between 0 and 1, not 1.2"),
        ({"ratio": 0.99}, "no patch is visible"),
        ({"mask": "diagonal"}, "unknown mask 'diagonal'"),
        ({"decoder_width": 18, "decoder_heads": 2}, "multiple of 4"),
        ({"decoder_heads": 3}, "3 heads do not divide"),
        ({"decoder_depth": 0}, "at least one block"),
    ],
)
def test_settings_that_cannot_work_are_refused_and_leave_the_encoder_alone(kwargs, words):
    encoder = vit()
    before = copy.deepcopy(encoder.state_dict())
    with pytest.raises(ConfigError, match=words):
        MaskedAutoencoder(encoder, **{"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2, **kwargs})
    after = encoder.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(after[key], before[key]) for key in after)


def test_images_of_another_size_are_refused():
    with pytest.raises(ModelError, match=r"built for images \(3, 16, 16\), not \(3, 20, 20\)"):
        mae()(torch.zeros(1, 3, 20, 20))


def test_it_learns():
    torch.manual_seed(3)
    model = create_mae("vit-pico-p4", img_size=16, ratio=0.5)
    colours = torch.randn(16, 3, 1, 1) + torch.linspace(-1, 1, 16).view(1, 1, 1, 16)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(25):
        loss = model(colours.expand(-1, -1, 16, 16), generator).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
