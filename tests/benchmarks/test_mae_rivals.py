"""The masked autoencoders that ours is measured against do the same work."""

from __future__ import annotations

import pytest
import torch

from relatum.models.mae import MaskedAutoencoder
from relatum.models.small_vit import small_vit

BLOCKS = {  # where each keeps the blocks of its encoder and of its decoder
    "relatum": ("encoder.blocks", "decoder.blocks"),
    "transformers": ("vit.layers", "decoder.decoder_layers"),
    "lightly": ("backbone.vit.blocks", "decoder.decoder_blocks"),
}


@pytest.fixture(scope="module")
def mae_speed(script):
    return script("mae_speed")


def small():
    torch.manual_seed(0)
    return MaskedAutoencoder(small_vit("vit-pico-p8", 1), 32, 2, 2)


def seen_by(step, path):
    """Tokens and channels that each block under `path` gets during one step."""
    shapes = []
    blocks = step.model.get_submodule(path)
    hooks = [b.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape))) for b in blocks]
    step()
    for hook in hooks:
        hook.remove()
    return shapes


def trained_numbers(model, unused=()):
    return sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and name not in unused)


@pytest.mark.parametrize("rival", ["relatum", "transformers", "lightly"])
def test_all_have_the_same_blocks_tokens_and_weights(mae_speed, rival):
    if rival != "relatum":
        pytest.importorskip(rival)
    ours = small()
    step = mae_speed.steps_of(ours, 3, "float32", [rival])[rival]
    encoder, decoder = BLOCKS[rival]
    assert seen_by(step, encoder) == [(3, 1 + 4, 64)] * 6  # of 16 patches 4 are visible
    assert seen_by(step, decoder) == [(3, 1 + 16, 32)] * 2
    unused = ("backbone.mask_token",)  # lightly's encoder has one that a masked autoencoder never touches
    assert trained_numbers(step.model, unused) == trained_numbers(ours)


@pytest.mark.parametrize("name", ["encoder", "all tokens"])
def test_the_encoder_on_all_tokens_gets_all_of_them_and_leaves_ours_alone(mae_speed, name):
    ours = small()
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    step = mae_speed.steps_of(ours, 3, "bfloat16", [name])[name]
    weight = next(step.model.parameters()).detach().clone()
    path = "blocks" if name == "encoder" else "encoder.blocks"
    assert seen_by(step, path) == [(3, 1 + 16, 64)] * 6
    assert not torch.equal(next(step.model.parameters()), weight)
    assert all(torch.equal(value, before[key]) for key, value in ours.state_dict().items())


def test_ratios_are_medians_over_rounds_and_the_faster_library_is_found(mae_speed):
    seconds = {
        "relatum": [1.0, 2.0, 9.0],
        "transformers": [2.0, 4.0, 4.0],
        "lightly": [4.0, 4.0, 9.0],
        "encoder": [4.0, 4.0, 9.0],
    }
    found = mae_speed.compare(seconds)
    assert found["faster library"] == found["transformers"]
    assert found["lightly"] == {"ratio": 0.5, "smallest": 0.25, "largest": 1.0}
    assert mae_speed.compare({"relatum": [1.0], "encoder": [4.0]}).keys() == {"encoder"}
