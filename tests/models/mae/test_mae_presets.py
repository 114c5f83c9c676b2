"""Presets: the sizes promised, each with a decoder that suits."""

from __future__ import annotations

import pytest
import torch

from relatum.errors import ConfigError
from relatum.models import count_parameters
from relatum.models.mae import MAE_PRESETS, create_mae
from relatum.models.small_vit import SMALL_VITS

LARGE = [f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")]
SMALL = [f"vit-{size}-p{patch}" for size in ("pico", "nano", "tiny", "small") for patch in (2, 4, 8)]


def test_the_table_is_complete():
    assert set(MAE_PRESETS) == {*LARGE, *SMALL}


@pytest.mark.parametrize("name", [*LARGE, "vit-pico-p4", "vit-nano-p2", "vit-tiny-p8", "vit-small-p2"])
def test_a_preset_is_built_with_a_decoder_smaller_than_its_encoder(name):
    with torch.device("meta"):
        model = create_mae(name)
    size = 224 if "224" in name else 64 if name.endswith("p8") else 32
    assert model.encoder.patch_embed.img_size == (size, size)
    assert count_parameters(model.decoder) < count_parameters(model.encoder)
    assert model.decoder.pos_embed.shape[-1] == MAE_PRESETS[name].decoder_width


@pytest.mark.parametrize("name", SMALL)
def test_small_presets_have_whole_heads_and_images_of_64_or_256_patches(name):
    preset = MAE_PRESETS[name]
    assert preset.decoder_width % preset.decoder_heads == preset.decoder_width % 4 == 0
    assert (preset.img_size // SMALL_VITS[name]["patch_size"]) ** 2 == (256 if name.endswith("p2") else 64)
    assert preset.decoder_width <= SMALL_VITS[name]["embed_dim"]


def test_the_published_decoder_for_the_published_sizes():
    for name in ("vit_base_patch16_224", "vit_large_patch16_224"):
        preset = MAE_PRESETS[name]
        assert (preset.decoder_width, preset.decoder_depth, preset.decoder_heads) == (512, 8, 16)


def test_sizes_given_go_before_the_preset():
    model = create_mae("vit-nano-p4", img_size=16, decoder_width=32, mask="grid", ratio=0.5, normalised=False)
    assert model.grid == (4, 4)
    assert model.decoder.mask_token.shape == (1, 1, 32)
    assert (model.mask, model.ratio, model.normalised) == ("grid", 0.5, False)
    assert len(model.decoder.blocks) == MAE_PRESETS["vit-nano-p4"].decoder_depth
    assert model(torch.randn(2, 3, 16, 16)).prediction.shape == (2, 16, 48)


def test_an_encoder_without_a_preset_wants_all_sizes():
    with pytest.raises(
        ConfigError, match="no masked autoencoder preset for 'vit-pico-p16'; give img_size, decoder_heads"
    ):
        create_mae("vit-pico-p16", decoder_width=32, decoder_depth=1)
    model = create_mae("vit-pico-p16", img_size=64, decoder_width=32, decoder_depth=1, decoder_heads=2)
    assert model.grid == (4, 4)


def test_the_seed_of_torch_makes_the_weights():
    def weights(seed):
        torch.manual_seed(seed)
        return create_mae("vit-pico-p8").state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert not torch.equal(first["decoder.pred.weight"], other["decoder.pred.weight"])
    assert all(torch.equal(first[key], again[key]) for key in first)
