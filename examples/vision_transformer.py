"""BatchFormerV2 in a vision transformer: where to relate, what it costs, what is left after detaching.

Run: python examples/vision_transformer.py
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

import relatum
from relatum.objectives import CrossEntropy

IMAGES, LABELS = torch.randn(16, 3, 32, 32), torch.arange(16) % 4
SPECS = {
    "after the last block": relatum.BatchFormerV2(at="last"),
    "after blocks 3 to 5": relatum.BatchFormerV2(at="blocks.3-5"),
    "after all, one module": relatum.BatchFormerV2(at="all", share=True),
    "the same, a quarter": relatum.BatchFormerV2(at="all", share=True, related_fraction=0.25),
    "all, as published": relatum.BatchFormerV2(at="all", share=True, variant="paper"),
}


def vision_transformer() -> torch.nn.Module:
    torch.manual_seed(0)
    return relatum.create_model("vit-nano-p8", 4, img_size=32)


def forward_flops(model: torch.nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model.train()(IMAGES)
    return int(counter.get_total_flops())


def train(spec: relatum.BatchFormerV2) -> tuple[int, int, float]:
    """Train a few steps; return rows of the output, parameters of the relation and the plain accuracy."""
    model = vision_transformer()
    relation = relatum.attach(model, spec)
    optimizer = torch.optim.AdamW(relation.param_groups(1e-3, lr_scale=1.0), lr=1e-3)
    for _ in range(8):
        logits = model.train()(IMAGES)
        loss = CrossEntropy()(logits, relation.targets(LABELS))
        optimizer.zero_grad()
        loss.backward()
        relation.check_gradients()
        optimizer.step()
    parameters = sum(p.numel() for p in relation.module.parameters())
    hits = relation.detach().eval()(IMAGES).argmax(1) == LABELS
    return len(logits), parameters, hits.float().mean().item()


def main() -> None:
    alone = forward_flops(vision_transformer())
    print(f"{'':22} rows  parameters  forward cost  accuracy on 16 random images")
    for name, spec in SPECS.items():
        model = vision_transformer()
        relatum.attach(model, spec)
        cost = forward_flops(model) / alone
        rows, parameters, accuracy = train(spec)
        print(f"{name:22} {rows:4} {parameters:11,} {cost:12.2f}x {accuracy:9.0%}")

    model = vision_transformer().eval()
    before = model(IMAGES)
    relatum.attach(model, SPECS["after all, one module"]).detach()
    print(f"detached: plain output as before {torch.equal(before, model(IMAGES))}")


if __name__ == "__main__":
    main()
