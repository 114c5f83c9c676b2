"""LiVT by hand: pretrain a small ViT without labels, look at what it draws, fine-tune with a balanced binary loss.

A few seconds of training: the numbers show that it runs, not what it can do.
Run: python examples/pretrain_and_finetune.py
"""

import sys
import tempfile
from pathlib import Path

import torch

import relatum
from relatum.config import DataConfig, TrainConfig
from relatum.evaluate import probe_encoder
from relatum.models.mae import create_mae, save_encoder
from relatum.objectives import BalancedBCE
from relatum.train import Display, MaskedTask

VIT = "vit-pico-p8"
DATA = DataConfig(
    kind="shapes", long_tail="exponential", imbalance=20, largest=100, image_size=32, batch_size=16, normalise="half"
)
COMMON = {"optimizer": "adamw", "decay_all": False, "weight_decay": 0.05, "precision": "float32", "device": "cpu"}
FIRST = TrainConfig(epochs=3, lr=3e-3, beta2=0.95, warmup_epochs=1, warmup_start=0.0, eval_every=2, **COMMON)
SECOND = TrainConfig(epochs=3, lr=3e-3, layer_decay=0.9, eval_every=0, **COMMON)


def pretrain(folder: Path) -> Path:
    """Predict hidden patches; return the file of the encoder."""
    loaders = relatum.build_loaders(DATA)
    torch.manual_seed(0)
    model = create_mae(VIT, img_size=32, ratio=0.75)
    task = MaskedTask(model, mean=loaders.preprocess.mean, std=loaders.preprocess.std, pictures=4)
    done = relatum.fit(task, loaders, FIRST, out=folder / "pretrain", display=Display(quiet=True))
    found = done.scores["test"]
    print(f"hidden patches: loss {found.loss:.3f}, PSNR {found.psnr:.1f} dB")
    print("pictures:", *sorted(path.name for path in (folder / "pretrain" / "pictures").iterdir()))
    judged = probe_encoder(model.encoder, loaders, methods=("k-nn",), k=5, pool="avg", bootstrap=0)["k-nn"]["test"]
    print("nearest neighbours:", {name: round(value or 0, 2) for name, value in judged.row().items()})
    save_encoder(model, folder / "encoder.safetensors")
    return folder / "encoder.safetensors"


def finetune(encoder: Path, folder: Path) -> relatum.evaluate.Scores:
    """Start from the encoder with a new classifier on the mean of the patches."""
    loaders = relatum.build_loaders(DATA)
    torch.manual_seed(0)
    classes = loaders.prior.num_classes
    model = relatum.create_model(VIT, classes, img_size=32, encoder=str(encoder), pool="avg", head_std=2e-5)
    task = relatum.ClassificationTask(model, BalancedBCE(loaders.prior, tau=1.0))
    scores: relatum.evaluate.Scores = relatum.fit(
        task, loaders, SECOND, out=folder / "finetune", display=Display(quiet=True)
    ).scores["test"]
    return scores


def main(folder: Path) -> None:
    encoder = pretrain(folder)
    scores = finetune(encoder, folder)
    print("fine-tuned:", {name: round(value or 0, 2) for name, value in scores.row().items()})
    print(f"its sigmoids are off by {scores.sigmoid['ece']:.2f} on average")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(place))
