"""Inputs of a model that are doubled at its door, always by name, and modules that run once nevertheless."""

import copy

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional

from relatum import BatchFormer, BatchFormerV2, attach
from relatum.errors import ConfigError, ModelError

CLASSES = 5
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def vit():
    sizes = {"img_size": 16, "patch_size": 8, "depth": 4, "embed_dim": 32, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **sizes).train()


def images(n=6, size=16):
    return torch.randn(n, 3, size, size)


class Labelled(nn.Module):
    """Takes its labels by keyword only, and other things of the same length that are nobody's business."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, CLASSES)
        self.seen = None

    def forward(self, x, *, labels=None, weights=None):
        self.seen = (labels, weights)
        return self.head(self.body(x.flatten(1)))


@pytest.mark.parametrize(
    "spec", [BatchFormerV2(at="body"), BatchFormerV2(at="body", related_fraction=0.5), BatchFormer()]
)
@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: {"a": y}, lambda y: y.tolist()])
def test_labels_are_doubled_by_name_never_by_shape(spec, wrap):
    model = Labelled()
    relation = attach(model, spec, num_classes=CLASSES)
    y, weights = torch.arange(6), torch.ones(6)
    out = model(images(size=2), labels=wrap(y), weights=weights)
    labels, given = model.seen
    labels = labels["a"] if isinstance(labels, dict) else labels
    assert torch.as_tensor(labels).tolist() == relation.targets(y).tolist()
    assert len(labels) == len(out) > 6 and given is weights


def test_a_transformers_model_computes_its_loss_on_both_streams():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=CLASSES)
    model = transformers.ViTForImageClassification(config).train()
    relation = attach(model, BatchFormerV2(at="all", related_fraction=0.5))
    y = torch.arange(6) % CLASSES
    out = model(images(), labels=y)
    assert out.logits.shape == (9, CLASSES)
    torch.testing.assert_close(out.loss, functional.cross_entropy(out.logits, relation.targets(y)))
    plain, related = relation.split(out)
    assert plain["logits"].shape == (6, CLASSES) and related["logits"].shape == (3, CLASSES)
    assert plain["loss"] is out.loss, "what belongs to the whole batch is in both"


def test_unknown_inputs_and_a_prefix_without_use_are_refused():
    with pytest.raises(ModelError, match="no argument 'images'; it has x"):
        attach(Labelled(), BatchFormerV2(at="body", inputs=("images",)))
    with pytest.raises(ConfigError, match="prefix"):
        attach(vit(), BatchFormerV2(prefix=("patch_embed",)))


def test_streams_that_begin_at_the_door_share_what_is_named_as_prefix():
    model, rows = vit(), []
    never, x = copy.deepcopy(model), images()
    relation = attach(model, BatchFormerV2(at="blocks.1-2", inputs=("x",), prefix=("patch_embed",), dropout=0.0))
    for name in ("patch_embed.proj", "blocks.0", "blocks.3"):
        model.get_submodule(name).register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    with pytest.warns(UserWarning, match="relation batch of 6"):
        plain, related = relation.split(model(x))
    assert rows == [6, 12, 12]
    torch.testing.assert_close(plain, never(x), rtol=0, atol=1e-6)
    assert not torch.allclose(plain, related, atol=1e-4)


def test_a_batchnorm_between_door_and_first_site_keeps_plain_statistics():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.norm = nn.Linear(12, 8), nn.BatchNorm1d(8)
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x, shift):
            return self.head(self.body(self.norm(self.early(x.flatten(1))) + shift))

    model = Net()
    never, x, shift = copy.deepcopy(model), images(size=2), torch.randn(6, 8)
    relation = attach(model, BatchFormerV2(at="body", inputs=("x", "shift"), related_fraction=0.5))
    plain, _ = relation.split(model(x, shift))
    torch.testing.assert_close(plain, never(x, shift), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.norm.running_var, never.norm.running_var)
