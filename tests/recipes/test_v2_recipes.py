"""Recipes of BatchFormerV2 (and ResNet-50 on balanced ImageNet): what the papers fix is what the files say."""

import math
import re

import pytest
import timm
import torch

from relatum import attach, create_model
from relatum.recipes.catalog import find_recipe, list_recipes
from relatum.relation.build import build_spec
from relatum.train.optim import learning_rate

SIZES = {"tiny": 3, "small": 6, "base": 12}  # attention heads of the three DeiT
# LiVT has its own settings, from another paper, and only lends the relation.
V2 = [
    recipe.name
    for recipe in list_recipes()
    if recipe.config().relation.name == "batchformer-v2" and not recipe.name.startswith("livt/")
]


def config(name):
    return find_recipe(name).config()


def published(name):
    """Numbers with a decimal point on the `published` line."""
    line = next(line for line in find_recipe(name).text.splitlines() if line.startswith("# published:"))
    return [float(number) for number in re.findall(r"\b\d+\.\d\b", line)]


def mixing(name):
    return config(name).data.mixup, config(name).data.cutmix


@pytest.mark.parametrize(
    ("name", "first", "last", "modules"),
    [
        ("imagenet-deit-tiny", 8, 8, 1),
        ("imagenet-deit-small", 8, 8, 1),
        ("imagenet-deit-base", 8, 8, 1),
        ("cifar100-deit-tiny", 1, 12, 1),
        ("cifar100-deit-small", 1, 12, 1),
        ("cifar100-deit-base", 1, 12, 1),
        ("cifar100-vit-nano", 1, 6, 1),
        ("cifar100-vit-nano/last-block", 6, 6, 1),
        ("tiny-imagenet-deit-small", 8, 8, 1),
        ("tiny-imagenet-deit-small/no-mix", 8, 8, 1),
        ("tiny-imagenet-deit-small/no-cutmix", 8, 8, 1),
        ("imagenet-lt-deit-small", 1, 12, 1),
        ("imagenet-lt-deit-small/blocks-4-12", 4, 12, 1),
        ("imagenet-lt-deit-small/blocks-8-12", 8, 12, 1),
        ("imagenet-lt-deit-small/non-shared", 1, 12, 12),
    ],
)
def test_positions_and_sharing_are_the_published_ones(name, first, last, modules):
    settings = config(name)
    with torch.device("meta"):
        model = create_model(settings.model.name, 100, img_size=settings.data.image_size)
        relation = attach(model, build_spec(settings.relation))
    # The papers count blocks from 1, timm from 0.
    assert relation.sites == tuple(f"blocks.{block - 1}" for block in range(first, last + 1))
    assert len(list(relation.module.children())) == modules
    assert relation.module[0].layers[0].heads == model.blocks[0].attn.num_heads


def test_the_list_of_positions_above_is_complete():
    mark = next(m for m in test_positions_and_sharing_are_the_published_ones.pytestmark if m.name == "parametrize")
    assert sorted(case[0] for case in mark.args[1]) == V2


@pytest.mark.parametrize("name", V2)
def test_the_relation_has_the_published_settings(name):
    relation = config(name).relation
    assert (relation.heads, relation.dropout, relation.lr_scale, relation.layers) == (0, 0.5, 1.0, 1)
    assert relation.two_streams and relation.related_fraction == 1.0 and relation.hidden == 0
    assert relation.variant == "auto" and "--relation.variant paper" in find_recipe(name).text


def test_only_the_base_model_on_imagenet_decays_the_relation_more():
    decays = {name: config(name).relation.weight_decay for name in V2}
    assert decays.pop("imagenet-deit-base") == 0.5
    assert set(decays.values()) == {-1.0}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("data", ["imagenet", "cifar100"])
def test_models_are_the_deit_of_that_size(data, size):
    name = config(f"{data}-deit-{size}").model.name
    with torch.device("meta"):
        model = timm.create_model(name)
    assert len(model.blocks) == 12 and model.blocks[7].attn.num_heads == SIZES[size]
    assert model.embed_dim == 64 * SIZES[size]


@pytest.mark.parametrize("name", [name for name in V2 if "deit" in name])
def test_an_optimizer_step_takes_1024_images_as_published(name):
    settings = config(name)
    assert settings.data.batch_size * settings.train.accumulate == 1024
    assert settings.train.optimizer == "adamw" and not settings.train.decay_all
    assert (settings.data.image_size, settings.model.drop_path, settings.objective.label_smoothing) == (224, 0.1, 0.1)


@pytest.mark.parametrize("name", [name for name in V2 if "deit" in name])
def test_the_rate_warms_up_from_1e_6_and_ends_at_1e_5(name):
    train = config(name).train
    epochs, lr, warmup, decay = (100, 6e-4, 3, 0.1) if name.startswith("cifar") else (300, 1e-3, 5, 0.05)
    assert (train.epochs, train.weight_decay) == (epochs, decay)
    assert math.isclose(learning_rate(train, 0), 1e-6, rel_tol=0.01)
    assert math.isclose(learning_rate(train, warmup), lr) and learning_rate(train, warmup - 0.5) < lr
    assert math.isclose(learning_rate(train, epochs), 1e-5)


@pytest.mark.parametrize("name", [name for name in V2 if "deit" in name])
def test_augmentation_is_that_of_deit(name):
    data = config(name).data
    cifar = name.startswith("cifar")
    assert (data.augment, data.magnitude) == ("deit", 9)
    assert (data.repeats, data.erasing) == ((1, 0.0) if cifar else (3, 0.25))
    if not name.startswith("tiny"):
        assert mixing(name) == ((0.5, 1.0) if cifar else (0.8, 1.0))


@pytest.mark.parametrize("name", V2)
def test_the_weights_are_averaged_only_where_training_is_long_enough(name):
    settings = config(name)
    images = {"imagenet-deit": 1_281_167, "cifar100": 50_000, "tiny": 100_000, "imagenet-lt": 115_846}
    steps = settings.train.epochs * next(n for key, n in images.items() if name.startswith(key)) // 1024
    memory = 1 / (1 - 0.99996)
    assert settings.train.ema == (0.99996 if steps > 10 * memory else 0.0)


def test_table_13_switches_mixup_and_cutmix():
    family = "tiny-imagenet-deit-small"
    for plain in ("plain", "plain-no-mix", "plain-no-cutmix"):
        related = "/".join([family, plain.removeprefix("plain").removeprefix("-")]).rstrip("/")
        assert mixing(related) == mixing(f"{family}/{plain}")
    assert mixing(family) == (0.8, 1.0)
    assert mixing(f"{family}/no-mix") == (0.0, 0.0)
    assert mixing(f"{family}/no-cutmix") == (0.8, 0.0)


def test_the_long_tailed_recipes_do_not_rebalance():
    for name in [recipe.name for recipe in list_recipes() if recipe.name.startswith("imagenet-lt-deit-small")]:
        settings = config(name)
        assert (settings.objective.name, settings.data.sampler) == ("cross-entropy", "instance")
        assert settings.objective.drw_start == settings.data.drs_start == 1.0
        assert settings.data.kind == "list" and settings.data.long_tail == "none"


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("imagenet-deit-tiny", [72.7, 91.5]),
        ("imagenet-deit-tiny/plain", [72.2, 91.1]),
        ("imagenet-deit-small", [80.4, 95.2]),
        ("imagenet-deit-small/plain", [79.8, 95.0]),
        ("imagenet-deit-base", [82.2, 95.8]),
        ("imagenet-deit-base/plain", [81.7, 95.5]),
        ("cifar100-deit-tiny", [58.7, 73.4]),
        ("cifar100-deit-tiny/plain", [49.2, 69.2]),
        ("cifar100-deit-small", [68.5, 75.2]),
        ("cifar100-deit-small/plain", [57.5, 72.5]),
        ("cifar100-deit-base", [66.6, 74.8]),
        ("cifar100-deit-base/plain", [52.2, 71.8]),
        ("cifar100-vit-nano", []),
        ("tiny-imagenet-deit-small", [82.9, 94.3]),
        ("tiny-imagenet-deit-small/plain", [81.8, 94.1]),
        ("tiny-imagenet-deit-small/no-mix", [78.2, 95.6]),
        ("tiny-imagenet-deit-small/plain-no-mix", [75.8, 89.6]),
        ("tiny-imagenet-deit-small/no-cutmix", [81.1, 92.3]),
        ("tiny-imagenet-deit-small/plain-no-cutmix", [79.8, 92.5]),
        ("imagenet-lt-deit-small", [35.5, 55.4, 27.2, 8.6]),
        ("imagenet-lt-deit-small/blocks-4-12", [35.5, 55.3, 26.8, 8.4]),
        ("imagenet-lt-deit-small/blocks-8-12", [34.7, 54.7, 26.3, 7.2]),
        ("imagenet-lt-deit-small/non-shared", [35.2, 55.3, 26.7, 8.3]),
        ("imagenet-lt-deit-small/plain", [32.8, 52.5, 24.3, 7.0]),
        ("imagenet-resnet50", [78.9]),
        ("imagenet-resnet50/plain", [78.9]),
    ],
)
def test_headers_quote_the_published_tables(name, numbers):
    assert published(name) == numbers


def test_resnet50_on_balanced_imagenet_has_the_image_level_relation():
    settings = config("imagenet-resnet50")
    assert (settings.model.name, settings.train.epochs, settings.objective.name) == ("resnet50", 200, "cross-entropy")
    assert (settings.relation.name, settings.relation.heads, settings.relation.lr_scale) == ("batchformer", 4, 0.1)
    assert settings.data.long_tail == "none" and settings.data.kind == "folder"


def test_the_cpu_recipe_sees_cifar_whole_and_as_it_is():
    settings = config("cifar100-vit-nano")
    assert (settings.data.kind, settings.data.image_size, settings.data.long_tail) == ("cifar100", 32, "none")
    assert settings.data.batch_size * settings.train.accumulate == 128
