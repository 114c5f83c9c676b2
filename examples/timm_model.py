"""Attach to timm models: a ViT and a ResNet, with a moving average of the weights and bfloat16 autocast.

Run: python examples/timm_model.py
"""

import copy

import timm
import torch
from torch import nn

import relatum
from relatum.objectives import CrossEntropy

CLASSES = 10


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float = 0.9) -> None:
    for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - decay)


def try_model(name: str, size: int, **options: int) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES, **options)
    plain_keys = list(model.state_dict())
    images, labels = torch.randn(16, 3, size, size), torch.randint(CLASSES, (16,))

    relation = relatum.attach(model, relatum.BatchFormer())
    print(f"{name}: {relation}")
    average = copy.deepcopy(model)  # the copy has a relation of its own, tied to the copy
    optimizer = torch.optim.AdamW(relation.param_groups(1e-3), lr=1e-3)
    objective = CrossEntropy()

    model.train()
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        loss = objective(logits, relation.targets(labels))  # computed in float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average(average, model)
    print(f"  training: {tuple(images.shape)} -> {tuple(logits.shape)} {logits.dtype}, loss {loss.item():.3f}")

    # In evaluation mode a sample's answer does not depend on its companions.
    model.eval()
    with torch.inference_mode():
        alone, together = model(images[:1]), model(images)[:1]
    print(f"  evaluation: {tuple(alone.shape)}, alone against in company: {(alone - together).abs().max():.1e}")

    copied = relatum.attached_relation(average)
    assert copied is not None and copied is not relation
    for handle in (copied, relation):
        handle.detach()
    print(f"  detached: keys as before {list(model.state_dict()) == plain_keys == list(average.state_dict())}")


def main() -> None:
    try_model("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, depth=4)
    try_model("resnet18", 64)


if __name__ == "__main__":
    main()
