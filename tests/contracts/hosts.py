"""Foreign models in small sizes, and what the contract tests look at."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from relatum import create_model

CLASSES = 7
NARROW = {"embed_dim": 48, "num_heads": 3}
# A host: how to build it, and the side of its images.
Host = tuple[Callable[[], nn.Module], int]


class HomeMade(nn.Module):
    """A convolutional model with nothing of timm's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.stem(x).mean((2, 3)))


class HomeMadeEncoder(nn.Module):
    """Patches through torch's own encoder; `batch_first=False` puts the samples in dimension 1 inside."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(48, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = self.embed(functional.unfold(x, 4, stride=4).transpose(1, 2))
        tokens = tokens if self.batch_first else tokens.transpose(0, 1)
        tokens = self.encoder(tokens, src_key_padding_mask=mask)
        return self.head(tokens.mean(1 if self.batch_first else 0))


def small_vit(name: str = "vit_tiny_patch16_224", depth: int = 2, **sizes: int) -> nn.Module:
    return timm.create_model(name, num_classes=CLASSES, img_size=32, patch_size=8, depth=depth, **sizes)


def eva() -> nn.Module:
    return timm.create_model("eva02_tiny_patch14_224", num_classes=CLASSES, img_size=28, depth=3, **NARROW)


def resnet() -> nn.Module:
    """Features are (N, C, H, W)."""
    return timm.create_model("resnet18", num_classes=CLASSES, channels=(8, 16, 32, 64))


def swin() -> nn.Module:
    """Two stages of different width; features are (N, H, W, C)."""
    sizes = {"img_size": 64, "window_size": 2, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=CLASSES, drop_path_rate=0.0, **sizes)


def torchvision_vit() -> nn.Module:
    sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    return torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_classes=CLASSES, **sizes)


def transformers_vit(depth: int = 2) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=CLASSES)
    return transformers.ViTForImageClassification(config)


HOSTS: dict[str, Host] = {
    "cifar resnet20": (lambda: create_model("resnet20-cifar", CLASSES), 32),
    "timm resnet18": (lambda: timm.create_model("resnet18", num_classes=CLASSES), 32),
    "timm vit_tiny": (small_vit, 32),
    "timm convnext_atto": (lambda: timm.create_model("convnext_atto", num_classes=CLASSES), 32),
    "timm efficientnet_b0": (lambda: timm.create_model("efficientnet_b0", num_classes=CLASSES), 32),
    "timm deit_tiny_distilled": (lambda: small_vit("deit_tiny_distilled_patch16_224"), 32),
    "torchvision mobilenet_v3": (lambda: torchvision.models.mobilenet_v3_small(num_classes=CLASSES), 32),
    "transformers vit": (transformers_vit, 32),
    "home-made": (HomeMade, 16),
}

LAYERED_HOSTS: dict[str, Host] = {
    "timm vit_tiny": (lambda: small_vit(depth=3, **NARROW), 32),
    "timm deit_tiny_distilled": (lambda: small_vit("deit_tiny_distilled_patch16_224", depth=3, **NARROW), 32),
    "timm eva02_tiny": (eva, 28),
    "timm swin_tiny": (swin, 64),
    "torchvision vit": (torchvision_vit, 32),
    "transformers vit": (lambda: transformers_vit(3), 32),
    "timm resnet18": (resnet, 32),
    "home-made encoder": (HomeMadeEncoder, 16),
    "home-made encoder, sequence first": (lambda: HomeMadeEncoder(batch_first=False), 16),
}


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """Give BatchNorm statistics, make the classifier differ from zero, and turn the host's own dropout off."""
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.out_features == CLASSES:
                nn.init.normal_(module.weight, std=0.1)
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return model.eval()


def hooks_of(model: nn.Module) -> list[tuple[str, str, int]]:
    """How many hooks of each kind every module has."""
    return [
        (name, kind, len(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ]


def assert_never_attached(model: nn.Module, never: nn.Module) -> None:
    """Keys, values, types and hooks are those of a model that never met a relation."""
    assert list(model.state_dict()) == list(never.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), never.parameters(), strict=True))
    assert [type(m) for m in model.modules()] == [type(m) for m in never.modules()]
    assert hooks_of(model) == hooks_of(never)


def calls(model: nn.Module, *args: object, **kwargs: object) -> list[tuple[str, int]]:
    """Run a deepcopy and list (module name, size of its first input) of every call, in order, without the relation."""
    model, seen = copy.deepcopy(model), []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple, named: dict) -> None:
            sizes = [leaf.numel() for leaf in tree_leaves((given, named)) if isinstance(leaf, Tensor)]
            seen.append((name, sizes[0] if sizes else 0))

        return hook

    for name, module in model.named_modules():
        if name and name.split(".")[0] != "relation":
            module.register_forward_pre_hook(note(name), with_kwargs=True)
    model(*args, **kwargs)
    return seen
