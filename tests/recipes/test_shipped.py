"""Every shipped recipe is built as it is, apart from sizes, and trains two steps."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import relatum.recipes
from relatum import create_model
from relatum.errors import ConfigError
from relatum.models.mae import create_mae
from relatum.recipes.catalog import copy_recipe, find_recipe, list_recipes
from relatum.recipes.classification import build
from relatum.recipes.stages import run
from relatum.train import Display
from relatum.train.optim import learning_rate, scaled_to_batch

FAMILIES = (
    "cifar10-lt-100",
    "cifar100-lt-100",
    "cifar100-lt-200",
    "imagenet-lt-resnet10",
    "imagenet-lt-resnet50",
    "inaturalist18-resnet50",
    "long-tail",
    "places-lt-resnet152",
    "shapes-lt",
    "tiny-imagenet-lt",
)
VARIANTS = ("", "/balanced-softmax", "/cross-entropy")
# Each relation recipe beside the plain one that it is to be compared with.
PLAIN_OF = {
    "cifar100-deit-base": "cifar100-deit-base/plain",
    "cifar100-deit-small": "cifar100-deit-small/plain",
    "cifar100-deit-tiny": "cifar100-deit-tiny/plain",
    "cifar100-vit-nano": "cifar100-vit-nano/plain",
    "cifar100-vit-nano/last-block": "cifar100-vit-nano/plain",
    "imagenet-deit-base": "imagenet-deit-base/plain",
    "imagenet-deit-small": "imagenet-deit-small/plain",
    "imagenet-deit-tiny": "imagenet-deit-tiny/plain",
    "imagenet-lt-deit-small": "imagenet-lt-deit-small/plain",
    "imagenet-lt-deit-small/blocks-4-12": "imagenet-lt-deit-small/plain",
    "imagenet-lt-deit-small/blocks-8-12": "imagenet-lt-deit-small/plain",
    "imagenet-lt-deit-small/non-shared": "imagenet-lt-deit-small/plain",
    "imagenet-resnet50": "imagenet-resnet50/plain",
    "livt/cifar100-lt-100-batchformer": "livt/cifar100-lt-100",
    "livt/cifar100-lt-100-batchformer-v2": "livt/cifar100-lt-100",
    "tiny-imagenet-deit-small": "tiny-imagenet-deit-small/plain",
    "tiny-imagenet-deit-small/no-cutmix": "tiny-imagenet-deit-small/plain-no-cutmix",
    "tiny-imagenet-deit-small/no-mix": "tiny-imagenet-deit-small/plain-no-mix",
}
LONG_TAILED = [family + variant for family in FAMILIES for variant in VARIANTS]
# LiVT: masked pretraining, then balanced binary cross-entropy. These start from an encoder that the user gives:
BORROWED = [
    *(f"livt/cifar{classes}-lt-{imbalance}-vit-b" for classes in (10, 100) for imbalance in (10, 100)),
    *(f"livt/places-lt-vit-{size}" for size in ("t", "s", "b", "b-384", "l")),
]
PUBLISHED = [
    f"livt/{data}-vit-{size}"
    for data in ("imagenet-lt", "inaturalist18")
    for size in ("t", "s", "b", "b-384", "l", "b-as-released", "b-384-as-released")
]
SMALL = [
    *(f"livt/cifar{classes}-lt-{imbalance}" for classes in (10, 100) for imbalance in (10, 100)),
    *(f"livt/cifar100-lt-100-{relation}" for relation in ("batchformer", "batchformer-v2", "mae-v2")),
    "livt/tiny-imagenet-lt",
    "long-tail-vit",
]
TRAINED = {}  # by settings: recipes that differ in sizes alone are the same here and need not be run twice
LIVT = [*BORROWED, *PUBLISHED, *SMALL]
FAST = ["cifar100-lt-100/fast-10min", "cifar100-lt-100/fast-30min"]
NAMES = [*LONG_TAILED, *FAST, *sorted({*PLAIN_OF, *PLAIN_OF.values()} - {*LIVT}), *LIVT]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tiny stand-ins of every layout, with the layout's own number of classes where the recipe fixes it."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, classes, keys in (("cifar-100-python", 100, "fine_labels"), ("cifar-10-batches-py", 10, "labels")):
        folder = root / name
        folder.mkdir()
        labels = np.repeat(np.arange(classes), 2).tolist()
        content = {"data": rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8), keys: labels}
        for file in ("train", "test") if classes == 100 else ("data_batch_1", "test_batch"):
            (folder / file).write_bytes(pickle.dumps(content))
        meta = {"fine_label_names" if classes == 100 else "label_names": [f"class {k}" for k in range(classes)]}
        (folder / ("meta" if classes == 100 else "batches.meta")).write_bytes(pickle.dumps(meta))
    for split in ("train", "val"):
        for k in range(3):
            (root / "folder" / split / f"kind{k}").mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "folder" / split / f"kind{k}" / f"{i}.png")
    for split in ("train", "val"):
        lines = [f"{split}/kind{k}/{i}.png {k}" for k in range(3) for i in range(4)]
        (root / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return root


def small(config, data):
    """The same recipe on small data: only sizes, places and lengths change."""
    kind = config.data.kind
    places = {
        "list": {
            "root": str(data / "folder"),
            "train_list": str(data / "train.txt"),
            "val_list": str(data / "val.txt"),
        },
        "cifar10": {"root": str(data)},
        "cifar100": {"root": str(data)},
        "shapes": {},
    }.get(kind, {"root": str(data / "folder")})
    sizes = {"image_size": 32, "batch_size": 8, "workers": 0}
    if config.data.long_tail != "none":
        sizes |= {"largest": 2, "imbalance": 2.0}
    changed = replace(config.data, **places, **sizes)
    warmup = min(config.train.warmup_epochs, 1.0)
    train = replace(config.train, epochs=2, warmup_epochs=warmup, max_steps=2, accumulate=1)
    # The three DeiT differ in width alone; writing checkpoints of the larger ones would be most of the test.
    model = replace(config.model, name=re.sub("^deit_(small|base)_", "deit_tiny_", config.model.name))
    if config.pretrain.method != "none":
        model = replace(model, name="vit-pico-p4")
        config = replace(config, pretrain=small_pretraining(config))
        if config.stages == ("finetune",):
            model = replace(model, encoder=str(borrowed_encoder(data, model.name)))
    if model.freeze != "none":
        weights = data / f"{model.name}.safetensors"
        if not weights.exists():
            save_file(create_model(model.name, 3).state_dict(), weights)
        model = replace(model, weights=str(weights))
    # The minutes of a recipe set its epochs, and here these are two.
    return replace(config, data=changed, train=train, model=model, minutes=0.0)


def small_pretraining(config):
    """Two steps; where the images are of another size than in the second stage, they are so here too."""
    settings = config.pretrain
    side = 32 if settings.image_size in (0, config.data.image_size) else 16
    small = {"image_size": side, "batch_size": 8, "accumulate": 1, "epochs": 2, "warmup_epochs": 1.0}
    return replace(settings, **small, decoder_width=0, decoder_depth=0, decoder_heads=0)  # 0: what suits the encoder


def borrowed_encoder(data, name):
    path = data / f"{name}-encoder.safetensors"
    if not path.exists():
        save_file(create_mae(name, img_size=16).encoder.state_dict(), path)
    return path


def test_the_list_of_recipes_is_complete():
    files = list(Path(relatum.recipes.__file__).parent.rglob("*.toml"))
    assert len(files) == len(NAMES) == 92
    assert sorted(recipe.name for recipe in list_recipes()) == sorted(NAMES)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_recipe_trains_two_steps(name, data, tmp_path):
    config = small(find_recipe(name).config(), data)
    if config not in TRAINED:
        TRAINED[config] = run(config, name, tmp_path / "run", Display(quiet=True))
    done = TRAINED[config]
    assert done.status == "finished" and done.steps == 2
    assert done.scores and all(0 <= scores.top1 <= 1 for scores in done.scores.values())


@pytest.mark.parametrize("name", BORROWED)
def test_recipes_that_borrow_an_encoder_ask_for_it(name, data, tmp_path):
    config = small(find_recipe(name).config(), data)
    with pytest.raises(ConfigError, match=r"--model\.encoder"):
        run(replace(config, model=replace(config.model, encoder="")), name, tmp_path / "run", Display(quiet=True))
    assert "--model.encoder" in find_recipe(name).text


@pytest.mark.parametrize("name", NAMES)
def test_headers_say_what_a_reader_needs(name):
    head = [line for line in find_recipe(name).text.splitlines() if line.startswith("#")]
    assert f"# command:   relatum train {name}" in "\n".join(head)
    assert any(line.startswith("# hardware:") for line in head)
    assert any(line.startswith("# published:") for line in head)


@pytest.mark.parametrize("family", FAMILIES)
def test_variants_differ_in_the_method_only(family):
    full, balanced, plain = (find_recipe(family + variant).config() for variant in VARIANTS)
    assert (full.relation.name, full.objective.name) == ("batchformer", "balanced-softmax")
    assert (balanced.relation.name, balanced.objective.name) == ("none", "balanced-softmax")
    assert (plain.relation.name, plain.objective.name) == ("none", "cross-entropy")
    assert full.data == balanced.data == plain.data
    assert full.train == balanced.train == plain.train and full.model == plain.model


@pytest.mark.parametrize(("name", "beside"), PLAIN_OF.items())
def test_a_plain_recipe_differs_in_the_relation_only(name, beside):
    related, plain = find_recipe(name).config(), find_recipe(beside).config()
    assert related.relation.name != "none" and plain.relation.name == "none"
    assert replace(related, relation=plain.relation) == plain


@pytest.mark.parametrize(("name", "steps", "warm"), [("cifar100-lt-100", 21, 38), ("cifar100-lt-200", 18, 44)])
def test_cifar_lengths_are_the_published_iterations(name, steps, warm):
    config = find_recipe(name).config()
    total = {100: 10_847, 200: 9_502}[int(config.data.imbalance)]
    assert total // config.data.batch_size == steps
    assert abs(config.train.epochs * steps - 13_000) <= steps
    assert config.train.warmup_epochs == warm and abs(warm * steps - 800) <= steps
    assert config.train.lr * config.train.warmup_start == 0.05


@pytest.mark.parametrize("name", LIVT)
def test_livt_recipes_share_what_the_paper_fixes(name):
    config = find_recipe(name).config()
    assert (config.pretrain.method, config.pretrain.ratio, config.pretrain.weight_decay) == ("mae", 0.75, 0.05)
    assert (config.objective.name, config.objective.shift) == ("balanced-bce", "none")
    assert config.objective.tau == (1.05 if "places" in name else 1.0)
    assert (config.model.pool, config.model.head_std) == ("avg", 2e-5)
    assert (config.data.mixup, config.data.cutmix, config.data.erasing, config.data.magnitude) == (0.8, 1.0, 0.25, 9)
    assert config.train.optimizer == "adamw" and not config.train.decay_all and config.data.sampler == "instance"


@pytest.mark.parametrize("name", [*PUBLISHED, *BORROWED])
def test_published_livt_recipes_have_the_published_sizes(name):
    config = find_recipe(name).config()
    released = name.endswith("as-released")
    assert (config.pretrain.epochs, config.pretrain.warmup_epochs, config.pretrain.lr) == (800, 40, 1.5e-4)
    assert (config.pretrain.decoder_width, config.pretrain.decoder_depth) == (512, 8)
    assert config.pretrain.image_size == (128 if "inaturalist" in name else 224)
    if not released:
        assert config.pretrain.batch_size * config.pretrain.accumulate == 4096
    if "cifar" in name:
        assert (config.train.epochs, config.data.image_size, config.train.layer_decay) == (20, 64, 0.65)
        return
    assert config.train.epochs == (30 if "places" in name else 50 if name.endswith("-l") else 100)
    assert config.data.image_size == (384 if "384" in name else 224)
    assert config.data.resize == (384 if "384" in name else 0)
    if not released:
        assert (config.train.warmup_epochs, config.train.beta2) == (5 if "places" in name else 10, 0.95)
        assert config.data.batch_size * config.train.accumulate == 1024
        assert config.model.drop_path == (0.2 if "inaturalist" in name else 0.1)


@pytest.mark.parametrize(
    ("name", "peak", "pretraining", "decay", "smoothing"),
    [
        ("livt/imagenet-lt-vit-b", 4e-3, 4096, 0.75, 0.0),
        ("livt/imagenet-lt-vit-b-as-released", 1e-3, 1024, 0.75, 0.1),
        ("livt/imagenet-lt-vit-b-384-as-released", 2e-3, 1024, 0.65, 0.1),
        ("livt/inaturalist18-vit-b", 4e-3, 4096, 0.75, 0.0),
        ("livt/inaturalist18-vit-b-as-released", 8e-3, 3072, 0.65, 0.0),
        ("livt/inaturalist18-vit-b-384-as-released", 4e-3, 3072, 0.65, 0.0),
    ],
)
def test_released_livt_runs_have_the_logged_rates(name, peak, pretraining, decay, smoothing):
    config = find_recipe(name).config()
    train = scaled_to_batch(config.train, config.data.batch_size)
    assert learning_rate(train, 0) == 0 and learning_rate(train, train.warmup_epochs) == pytest.approx(peak)
    assert learning_rate(train, train.epochs) == pytest.approx(1e-6)
    assert config.pretrain.batch_size * config.pretrain.accumulate == pretraining
    assert (train.layer_decay, config.objective.label_smoothing) == (decay, smoothing)
    if name.endswith("as-released"):
        assert (train.beta2, train.warmup_epochs) == (0.999, 5)
        assert smoothing == 0 or config.objective.bias_prior == "counts"


def test_a_relation_in_the_decoder_changes_the_first_stage_only():
    related, plain = (find_recipe(f"livt/cifar100-lt-100{end}").config() for end in ("-mae-v2", ""))
    assert (related.pretrain.relation, related.relation.name) == ("batchformer-v2", "none")
    assert replace(related, pretrain=plain.pretrain, relation=plain.relation) == plain
    assert replace(related.pretrain, relation="none") == plain.pretrain


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layers", [2, 16])
@pytest.mark.parametrize("shared", [True, False])
def test_ablations_of_the_paper_are_overrides(layers, shared, data):
    config = small(find_recipe("cifar100-lt-100").config(), data)
    relation = replace(config.relation, layers=layers, shared_classifier=shared)
    task, loaders = build(replace(config, relation=relation))
    task.train()
    output = task(next(iter(loaders.train.epoch(0))))
    assert len(task.relation.module[0].layers) == layers
    assert ("loss/plain" in output) == shared and torch.isfinite(output["loss"])


def test_a_copied_recipe_is_complete_and_trains_the_same(tmp_path):
    path = copy_recipe("long-tail/cross-entropy", tmp_path)
    assert find_recipe(str(path)).config() == find_recipe("long-tail/cross-entropy").config()
    assert "extends" not in path.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        copy_recipe("long-tail/cross-entropy", tmp_path)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cifar100-lt-100'"):
        find_recipe("cifar100-lt-10")
