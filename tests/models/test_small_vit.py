"""The small ViTs are timm's ViT in other sizes."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from relatum.errors import ModelError
from relatum.models import OWN_MODELS, create_model
from relatum.models.export_blueprint import blueprint
from relatum.models.small_vit import SMALL_VITS

# Written out again, so that a slip in the table shows: width, depth, heads.
SIZES = {"pico": (64, 6, 2), "nano": (128, 6, 4), "tiny": (192, 12, 3), "small": (384, 12, 6)}


def test_every_size_has_every_patch_and_a_name():
    wanted = {f"vit-{size}-p{patch}" for size in SIZES for patch in (2, 4, 8, 16)}
    assert set(SMALL_VITS) == wanted
    assert wanted <= set(OWN_MODELS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("patch", "img_size"), [(4, 32), (8, 64)])
def test_a_small_vit_has_the_parts_of_timms_vit(size, patch, img_size):
    width, depth, heads = SIZES[size]
    with torch.device("meta"):
        ours = create_model(f"vit-{size}-p{patch}", 7, img_size=img_size)
        kwargs = {"embed_dim": width, "depth": depth, "num_heads": heads, "mlp_ratio": 4.0, "qkv_bias": True}
        timms = timm.create_model(
            "vit_tiny_patch16_224", num_classes=7, img_size=img_size, patch_size=patch, class_token=True, **kwargs
        )
    assert type(ours) is VisionTransformer
    assert [(n, type(m)) for n, m in ours.named_modules()] == [(n, type(m)) for n, m in timms.named_modules()]
    shapes = {name: tuple(tensor.shape) for name, tensor in timms.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()} == shapes
    assert shapes["pos_embed"] == (1, (img_size // patch) ** 2 + 1, width)
    assert ours.blocks[0].attn.num_heads == heads


def test_the_size_is_32_unless_given_and_the_patch_that_of_the_name():
    model = create_model("vit-nano-p16", 5)
    assert model.patch_embed.img_size == (32, 32)
    assert model.patch_embed.patch_size == (16, 16)
    assert create_model("vit-nano-p16", 5, img_size=64).eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        (
            "vit-nano-p8",
            {"img_size": 36},
            r"36 is no multiple of 8; .* to 32 or 40, or take vit-nano-p2 or vit-nano-p4",
        ),
        ("vit-tiny-p16", {"img_size": 8}, "set data.image_size .* to 16 or 32, or take vit-tiny-p2"),
        ("vit-tiny-p4", {"img_size": 33}, r"to 32 or 36\."),
        ("vit-nano-p8", {"patch_size": 4}, "fixes patch_size already; leave it out"),
        ("vit-nano-p8", {"widht": 4}, "widht"),
    ],
)
def test_errors_name_cause_and_cure(name, kwargs, words):
    with pytest.raises(ModelError, match=words):
        create_model(name, 3, **kwargs)


def test_the_export_is_built_by_timm_at_the_size_of_the_images():
    class Trained:
        model = create_model("vit-nano-p8", 3, img_size=64)
        class_names = ("a", "b", "c")
        kwargs = {"img_size": 64}  # noqa: RUF012 - a stand-in, not a shared default

        class settings:
            name = "vit-nano-p8"
            pool = "default"

    plan = blueprint(Trained)
    assert plan.by_timm
    again = timm.create_model(plan.name, num_classes=plan.classes, **plan.args)
    assert again.load_state_dict(Trained.model.state_dict())
