"""The numbers of transformers' ViTMAEForPreTraining, with the same weights."""

from __future__ import annotations

import pytest
import timm
import torch

from relatum.models.mae import MaskedAutoencoder, patchify, sincos_positions

transformers = pytest.importorskip("transformers")


def theirs(normalised):
    config = transformers.ViTMAEConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        layer_norm_eps=1e-6,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        norm_pix_loss=normalised,
    )
    torch.manual_seed(5)
    model = transformers.ViTMAEForPreTraining(config)
    for parameter in model.parameters():  # biases and norms away from 0 and 1, so that a forgotten one shows
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    # Some versions build it with all positions zero; test_mae_positions.py checks the fixed ones against the formula.
    for table, width in ((model.vit.embeddings.position_embeddings, 32), (model.decoder.decoder_pos_embed, 16)):
        table.data.copy_(sincos_positions((4, 4), width))
    return model


def ours(normalised):
    encoder = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, num_classes=0
    )
    return MaskedAutoencoder(encoder, 16, 2, 2, normalised=normalised)


def layer_table(theirs_name, ours_name):
    pairs = {
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "attention.o_proj": "attn.proj",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    }
    return {f"{theirs_name}.{k}": f"{ours_name}.{v}" for k, v in pairs.items()}


def copy_weights(source, target):
    state, wanted = source.state_dict(), {}
    modules = {
        "vit.embeddings.patch_embeddings.projection": "encoder.patch_embed.proj",
        "vit.layernorm": "encoder.norm",
        "decoder.decoder_embed": "decoder.embed",
        "decoder.decoder_norm": "decoder.norm",
        "decoder.decoder_pred": "decoder.pred",
    }
    blocks = [(f"vit.layers.{i}", f"encoder.blocks.{i}") for i in range(3)]
    blocks += [(f"decoder.decoder_layers.{i}", f"decoder.blocks.{i}") for i in range(2)]
    for there, here in blocks:
        modules |= layer_table(there, here)
        for kind in ("weight", "bias"):
            parts = [state[f"{there}.attention.{p}_proj.{kind}"] for p in "qkv"]
            wanted[f"{here}.attn.qkv.{kind}"] = torch.cat(parts)
    for there, here in modules.items():
        wanted |= {f"{here}.{kind}": state[f"{there}.{kind}"] for kind in ("weight", "bias")}
    wanted["encoder.cls_token"] = state["vit.embeddings.cls_token"]
    wanted["decoder.mask_token"] = state["decoder.mask_token"]
    result = target.load_state_dict(wanted, strict=False)
    assert set(result.missing_keys) == {"encoder.pos_embed", "decoder.pos_embed"}
    assert not result.unexpected_keys


@pytest.mark.parametrize("normalised", [True, False])
def test_same_weights_same_noise_same_loss_prediction_and_gradient(normalised):
    there, here = theirs(normalised), ours(normalised)
    torch.manual_seed(0)
    images, noise = torch.randn(4, 3, 32, 32), torch.rand(4, 16)
    assert (here(images, noise=noise).prediction - there(images, noise=noise).logits).abs().max() > 0.1
    copy_weights(there, here)

    mine, wanted = here(images, noise=noise), there(images, noise=noise)
    assert abs(mine.loss.item() - wanted.loss.item()) < 1e-5
    torch.testing.assert_close(mine.prediction, wanted.logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(mine.mask, wanted.mask.bool())
    assert torch.equal(mine.ids_restore, wanted.ids_restore)
    torch.testing.assert_close(patchify(images, 8), there.patchify(images))

    mine.loss.backward()
    wanted.loss.backward()
    pairs = {
        "encoder.patch_embed.proj.weight": "vit.embeddings.patch_embeddings.projection.weight",
        "encoder.cls_token": "vit.embeddings.cls_token",
        "encoder.blocks.0.mlp.fc1.weight": "vit.layers.0.mlp.fc1.weight",
        "decoder.mask_token": "decoder.mask_token",
        "decoder.pred.bias": "decoder.decoder_pred.bias",
    }
    for here_name, there_name in pairs.items():
        gradient = here.get_parameter(here_name).grad
        assert gradient.any(), here_name
        torch.testing.assert_close(gradient, there.get_parameter(there_name).grad, atol=1e-5, rtol=1e-3)
