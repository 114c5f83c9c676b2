"""What BatchFormerV2 can be told: places, modules, heads, tokens, layouts, streams."""

import copy

import pytest
import timm
import torch
from torch import nn

from relatum import BatchFormerV2, attach
from relatum.errors import ConfigError, ModelError

CLASSES = 5
pytestmark = pytest.mark.filterwarnings("ignore:relation batch")


def vit(name="vit_tiny_patch16_224", depth=4):
    sizes = {"img_size": 16, "patch_size": 8, "depth": depth, "embed_dim": 32, "num_heads": 4}
    torch.manual_seed(1)
    return timm.create_model(name, num_classes=CLASSES, **sizes).train()


def images(n=6, size=16):
    return torch.randn(n, 3, size, size)


def output_of(model, name, x):
    """What leaves the module `name`, after any hook of ours."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda _, __, out: seen.append(out))
    model(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("at", "places"),
    [
        ("blocks.2", (2,)),
        ("blocks.1-3", (1, 2, 3)),
        ("all", (0, 1, 2, 3)),
        ("last", (3,)),
        (["blocks.0", "last"], (0, 3)),
        (("blocks.0-1", "blocks.3"), (0, 1, 3)),
        ("blocks.2-2", (2,)),
    ],
)
def test_places(at, places):
    relation = attach(vit(), BatchFormerV2(at=at))
    assert relation.sites == tuple(f"blocks.{k}" for k in places)


def test_a_range_may_be_in_the_middle_of_a_name():
    assert attach(vit(), BatchFormerV2(at="blocks.0-1.mlp")).sites == ("blocks.0.mlp", "blocks.1.mlp")


@pytest.mark.parametrize(
    ("at", "error", "message"),
    [
        ("block.1", ModelError, r"blocks\.1"),
        ("blocks.7", ModelError, r"blocks\.\d"),
        ("blocks.2-5", ModelError, r"no module 'blocks\.4'"),
        ("encoder.layers.3", ModelError, "blocks"),
        ("blocks.3-1", ConfigError, "backwards; write it as 1-3"),
        (("blocks.1", "blocks.0-2"), ConfigError, "'blocks.1' twice"),
        (("all", "last"), ConfigError, "twice"),
    ],
)
def test_impossible_places_are_refused_before_any_change(at, error, message):
    model = vit()
    keys = list(model.state_dict())
    with pytest.raises(error, match=message):
        attach(model, BatchFormerV2(at=at))
    assert list(model.state_dict()) == keys and model(images()).shape == (6, CLASSES)


@pytest.mark.parametrize("at", ["", ()])
def test_no_place_at_all_is_refused(at):
    with pytest.raises(ConfigError, match="place"):
        BatchFormerV2(at=at)


def test_a_model_without_blocks_needs_names():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, CLASSES))
    with pytest.raises(ModelError, match="repeats no blocks"):
        attach(model, BatchFormerV2(at="all"))
    attach(model, BatchFormerV2(at="1", dropout=0.0))
    assert model.train()(images(size=2)).shape == (12, CLASSES)


def test_sites_in_the_wrong_order_are_noticed_when_they_run():
    model = vit()
    attach(model, BatchFormerV2(at=("blocks.2", "blocks.1")))
    with pytest.raises(ModelError, match=r"'blocks\.1' ran before 'blocks\.2'.*in the order in which they run"):
        model(images())


def test_one_module_for_all_sites_or_one_each():
    def count(relation):
        return sum(p.numel() for p in relation.module.parameters())

    one = attach(vit(), BatchFormerV2(at="last"))
    each = attach(vit(), BatchFormerV2(at="all"))
    shared = attach(vit(), BatchFormerV2(at="all", share=True))
    assert len(each.module) == 4 and len(shared.module) == 1
    assert count(shared) == count(one) and count(each) == 4 * count(one)
    assert sum(key.startswith("relation.") for key in shared.model.state_dict()) == len(one.module.state_dict())
    shared.model(images()).square().sum().backward()
    shared.check_gradients()
    torch.optim.SGD(shared.param_groups(0.1), lr=0.1)  # refuses a parameter that is in two groups


def test_a_shared_module_needs_one_width():
    sizes = {"img_size": 32, "window_size": 2, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}
    model = timm.create_model("swin_tiny_patch4_window7_224", **sizes)
    with pytest.raises(ConfigError, match=r"\(16\).*\(32\).*share=False"):
        attach(model, BatchFormerV2(at="all", share=True))
    relation = attach(model, BatchFormerV2(at="all"))
    assert [m.layers[0].query.in_features for m in relation.module] == [16, 32]


def test_heads_are_those_of_the_host_unless_given():
    assert attach(vit(), BatchFormerV2()).module[0].layers[0].heads == 4
    assert attach(vit(), BatchFormerV2(heads=8)).module[0].layers[0].heads == 8
    assert attach(vit(), BatchFormerV2(heads=2, variant="paper")).module[0].layers[0].self_attn.num_heads == 2
    with pytest.raises(ConfigError, match="5 attention heads do not divide"):
        attach(vit(), BatchFormerV2(heads=5))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, CLASSES))
    assert attach(plain, BatchFormerV2(at="1")).module[0].layers[0].heads == 3, "at most 4, and dividing the width"


@pytest.mark.parametrize(("name", "count"), [("vit_tiny_patch16_224", 1), ("deit_tiny_distilled_patch16_224", 2)])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("tokens", ["all", "class", "patch"])
def test_only_the_named_tokens_change_at_a_site(name, count, fraction, tokens):
    model = vit(name)
    relation = attach(model, BatchFormerV2(at="blocks.1", tokens=tokens, dropout=0.0, related_fraction=fraction))
    plain, related = relation.split(output_of(model, "blocks.1", images()))
    changed = (relation.in_related(plain) - related).abs().amax((0, 2)) > 1e-6
    expected = {"all": (True, True), "class": (True, False), "patch": (False, True)}[tokens]
    assert changed.tolist() == [expected[0]] * count + [expected[1]] * 4


def test_class_tokens_of_a_home_made_model_have_to_be_counted_by_its_maker():
    model = nn.Sequential(nn.Flatten(2), nn.Linear(4, 8), nn.Linear(8, CLASSES))
    with pytest.raises(ModelError, match=r"class_tokens="):
        attach(model, BatchFormerV2(at="1", tokens="class"))
    relation = attach(model, BatchFormerV2(at="1", tokens="class", class_tokens=2, dropout=0.0))
    plain, related = relation.split(output_of(model, "1", images(size=2)))
    assert ((plain - related).abs().amax((0, 2)) > 1e-6).tolist() == [True, True, False]


class Maps(nn.Module):
    """A layer whose features are maps, (N, C, H, W) after a convolution or (N, H, W, C) after a Linear."""

    def __init__(self, width, convolution):
        super().__init__()
        self.convolution = convolution
        self.layer = nn.Sequential(nn.Conv2d(3, width, 1) if convolution else nn.Linear(3, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.layer(x if self.convolution else x.movedim(1, -1))
        return self.head(x.mean((2, 3) if self.convolution else (1, 2)))


@pytest.mark.parametrize("convolution", [True, False])
@pytest.mark.parametrize(("width", "side"), [(8, 4), (8, 8)])
@pytest.mark.parametrize("explicit", [False, True])
def test_maps_are_related_over_the_samples_at_each_pixel(convolution, width, side, explicit):
    model = Maps(width, convolution)
    channels = ("first" if convolution else "last") if explicit else "auto"
    relation = attach(model, BatchFormerV2(at="layer", dropout=0.0, channels=channels))
    plain, related = relation.split(output_of(model.train(), "layer", images(5, side)))
    attention = relation.module[0]
    fits = width == side
    first = attention(plain.movedim(1, -1)).movedim(-1, 1) if fits or convolution else None
    last = attention(plain) if fits or not convolution else None
    right, wrong = (first, last) if convolution else (last, first)
    torch.testing.assert_close(related, right, rtol=1e-5, atol=1e-6)
    assert wrong is None or not torch.allclose(related, wrong, atol=1e-3), "C = H = W does not confuse it"


def test_the_wrong_layout_or_tokens_on_maps_are_refused():
    model = Maps(8, convolution=True)
    relation = attach(model, BatchFormerV2(at="layer", channels="last"))
    with pytest.raises(ModelError, match=r"built for width 8.*channels="):
        model(images(5, 4))
    relation.detach()
    attach(model, BatchFormerV2(at="layer", tokens="class", class_tokens=1))
    with pytest.raises(ModelError, match="tokens='all'"):
        model(images(5, 4))


def test_width_can_be_given_where_it_cannot_be_read():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    with pytest.raises(ModelError, match=r"width="):
        attach(model, BatchFormerV2(at="2"))
    attach(model, BatchFormerV2(at="2", width=8))
    assert model(images(size=2)).shape == (12, CLASSES)


def test_a_width_read_wrongly_is_noticed_when_it_runs():
    class Odd(nn.Linear):
        def __init__(self):
            super().__init__(12, 8)
            self.unused = nn.Linear(8, 3)

    model = nn.Sequential(nn.Flatten(), Odd(), nn.Linear(8, CLASSES))
    relation = attach(model, BatchFormerV2(at="1"))
    with pytest.raises(ModelError, match=r"'1' gives features of shape \(6, 8\).*width 3"):
        model(images(size=2))
    relation.detach()
    attach(model, BatchFormerV2(at="1", width=8))
    assert model(images(size=2)).shape == (12, CLASSES)


def test_the_dimension_of_the_samples_is_checked_where_it_is_known():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False)
    with pytest.raises(ModelError, match="batch_dim=1"):
        attach(encoder, BatchFormerV2(at="all"))
    attach(encoder, BatchFormerV2(at="all", batch_dim=1))
    assert encoder.train()(torch.randn(7, 3, 8)).shape == (7, 6, 8)


def test_a_single_stream_replaces_the_features_at_every_site():
    model = vit()
    never, x = copy.deepcopy(model), images()
    relation = attach(model, BatchFormerV2(at="blocks.1-2", two_streams=False, dropout=0.0))
    x0 = never.norm_pre(never.pos_drop(never._pos_embed(never.patch_embed(x))))
    expected = never.blocks[1](never.blocks[0](x0))
    expected = relation.module[1](never.blocks[2](relation.module[0](expected)))
    expected = never.forward_head(never.norm(never.blocks[3](expected)))
    out = model(x)
    assert not torch.allclose(out, never(x), atol=1e-3)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert relation.targets(torch.arange(6)).tolist() == list(range(6))
    assert list(relation.streams(out)) == ["related"]
    with pytest.raises(ModelError, match="one stream"):
        relation.split(out)
    assert torch.equal(model.eval()(x), never.eval()(x))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_mini_batch_inference_with_several_sites(share, fraction):
    model = vit().eval()
    x = images()
    quiet = model(x)
    relation = attach(model, BatchFormerV2(at="all", share=share, related_fraction=fraction))
    with relation.inference("both"):
        plain, related = relation.split(model(x))
        assert torch.equal(plain, quiet)
        whole = related if fraction == 1 else None
    with relation.inference("related"):
        alone = model(x)
        assert relation.stream_names == ("related",) and relation.targets(torch.arange(6)).shape == (6,)
    assert alone.shape == quiet.shape and not torch.allclose(alone, quiet, atol=1e-4)
    if whole is not None:
        torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-6)
    assert torch.equal(model(x), quiet)
