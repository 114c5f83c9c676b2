"""Fabricate run directories that look like real ones: python tests/report/fabricate.py FOLDER."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from relatum.config import RunConfig
from relatum.prior import GROUPS, ClassPrior

EDGES = np.linspace(0, 1, 16)


@dataclass(frozen=True)
class Method:
    """What decides a fabricated run: its settings, and how well rare and frequent classes fare."""

    name: str
    objective: str = "cross-entropy"
    relation: str = "none"
    frequent: float = 0.85
    rare: float = 0.08


METHODS = (
    Method("cross-entropy"),
    Method("balanced-softmax", "balanced-softmax", frequent=0.78, rare=0.34),
    Method("balanced-softmax-batchformer", "balanced-softmax", "batchformer", frequent=0.79, rare=0.42),
)


def names(classes: int) -> list[str]:
    shapes, colours = ["circle", "square", "star", "ring", "cross"], ["red", "green", "blue", "grey"]
    known = [f"{colour} {shape}" for colour in colours for shape in shapes]
    return [known[k] if k < len(known) else f"class {k}" for k in range(classes)]


def long_tail(classes: int, largest: int = 400, imbalance: float = 100.0) -> np.ndarray:
    return np.floor(largest * imbalance ** (-np.arange(classes) / max(classes - 1, 1))).astype(np.int64)


def streams(method: Method, loss: float) -> dict[str, float]:
    """What a run with a relation logs of its streams."""
    if method.relation == "none":
        return {}
    return {"loss/plain": 0.95 * loss, "loss/related": 1.05 * loss, "agreement": 1 / (1 + loss)}


def simulate(method: Method, counts: np.ndarray, seed: int, per_class: int = 50, rule: str = "standard") -> dict:
    """Draw predictions and confidences, and compute every score from them."""
    rng = np.random.default_rng(seed)
    k = len(counts)
    log = np.log(np.maximum(counts, 1))
    ease = (log - log.min()) / max(log.max() - log.min(), 1e-9)
    chance = np.clip(method.rare + (method.frequent - method.rare) * ease + rng.normal(0, 0.05, k), 0.0, 0.98)
    true = np.repeat(np.arange(k), per_class)
    drawn = rng.choice(k, size=len(true), p=np.maximum(counts, 1) / np.maximum(counts, 1).sum())
    predicted = np.where(rng.random(len(true)) < chance[true], true, drawn)
    right = predicted == true
    confidence = np.clip(np.where(right, rng.beta(6, 2, len(true)), rng.beta(4, 3, len(true))), 1 / k, 0.9999)
    return scores(true, predicted, confidence, counts, names(k), rule)


def scores(true, predicted, confidence, counts, labels, rule) -> dict:
    k, right = len(counts), predicted == true
    confusion = np.zeros((k, k), dtype=int)
    np.add.at(confusion, (true, predicted), 1)
    support, taken, hit = confusion.sum(1), confusion.sum(0), np.diag(confusion)
    accuracy = [hit[c] / support[c] if support[c] else None for c in range(k)]
    precision = [hit[c] / taken[c] if taken[c] else None for c in range(k)]
    f1 = [2 * hit[c] / (support[c] + taken[c]) if support[c] + taken[c] else 0.0 for c in range(k)]
    found = ClassPrior(counts).shot_groups(rule)
    groups = {}
    for name in GROUPS:
        values = [accuracy[c] for c in found.classes(name) if accuracy[c] is not None]
        groups[name] = {"accuracy": float(np.mean(values)) if values else None, "classes": len(found.classes(name))}
    whole = calibration(confidence, right)
    member = found.group[true]
    parts = {name: member == i for i, name in enumerate(GROUPS)}
    top1, error = float(right.mean()), 1.96 * float(np.sqrt(right.mean() * (1 - right.mean()) / len(right)))
    worst = min((c for c in range(k) if accuracy[c] is not None), key=lambda c: accuracy[c])
    return {
        "split": "test", "samples": len(true), "classes": k, "top1": top1, "top5": min(1.0, top1 + 0.2),
        "balanced_accuracy": float(np.mean([a for a in accuracy if a is not None])), "macro_f1": float(np.mean(f1)),
        "nll": float(-np.log(np.where(right, confidence, (1 - confidence) / (k - 1) + 1e-3)).mean()),
        "ece": whole["ece"], "mce": whole["mce"], "rule": rule, "groups": groups,
        "per_class": [
            {"name": labels[c], "train_count": int(counts[c]), "support": int(support[c]),
             "accuracy": accuracy[c], "precision": precision[c]}
            for c in range(k)
        ],
        "worst_class": {"name": labels[worst], "accuracy": accuracy[worst]},
        "interval": {"low": top1 - error, "high": top1 + error, "level": 0.95},
        "reliability": whole["reliability"], "confusion": confusion.tolist(), "adjustment": "none", "sigmoid": None,
        "group_reliability": {
            name: calibration(confidence[i], right[i]) if i.any() else None for name, i in parts.items()
        },
    }  # fmt: skip


def calibration(confidence, right) -> dict:
    """ECE, MCE and the bins behind them."""
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    count = np.bincount(bins, minlength=15)
    mean = [[float(v[bins == b].mean()) if count[b] else None for b in range(15)] for v in (right, confidence)]
    gaps = np.array([abs(a - c) if a is not None else 0.0 for a, c in zip(*mean, strict=True)])
    table = {"edges": EDGES.tolist(), "count": count.tolist(), "accuracy": mean[0], "confidence": mean[1]}
    ece, mce = float((gaps * count).sum() / len(right)), float(gaps.max())
    return {"ece": ece, "mce": mce, "count": len(right), "reliability": table}


def metric_rows(method: Method, final: dict, epochs: int, seed: int, steps: int = 8) -> list[dict]:
    rng = np.random.default_rng(seed + 1)
    rows = []
    for step in range(1, epochs * steps + 1):
        epoch = step / steps
        if step % 2 == 0:
            loss = 0.4 + 2.6 * np.exp(-epoch / 6) + rng.normal(0, 0.05)
            rows.append({"kind": "train", "epoch": epoch, "step": step, "loss": float(loss), "lr": 0.1,
                         "images_per_second": 900.0, **streams(method, float(loss))})  # fmt: skip
        if step % steps == 0:
            grown = min(1.0, 1.02 - np.exp(-epoch / 7) + rng.normal(0, 0.01))
            accuracies = {name: final["groups"][name]["accuracy"] for name in GROUPS}
            row = {name: None if a is None else float(a * grown) for name, a in accuracies.items()}
            rows.append({"kind": "eval", "split": final["split"], "epoch": epoch, "step": step,
                         "top1": final["top1"] * grown, "top5": final["top5"] * grown, **row,
                         "nll": final["nll"], "ece": final["ece"]})  # fmt: skip
    return rows


def config(method: Method, seed: int, epochs: int, rule: str) -> RunConfig:
    plain = RunConfig()
    return dataclasses.replace(
        plain,
        out=f"runs/{method.name}-s{seed}",
        objective=dataclasses.replace(plain.objective, name=method.objective),
        relation=dataclasses.replace(plain.relation, name=method.relation),
        train=dataclasses.replace(plain.train, epochs=epochs, seed=seed),
        evaluate=dataclasses.replace(plain.evaluate, shot_rule=rule),
    )


def toml(settings: RunConfig) -> str:
    """JSON scalars and lists are TOML too."""
    tables = dataclasses.asdict(settings)
    lines = [f"{key} = {json.dumps(tables.pop(key))}" for key in ("out", "allow_changes", "minutes", "stages")]
    for table, values in tables.items():
        lines += ["", f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def manifest(method: Method, counts: np.ndarray, labels: list[str], seed: int) -> dict:
    related = method.relation != "none"
    return {
        "recipe": method.name, "relatum": "0.1.0",
        "versions": {"torch": "2.15.0", "timm": "1.0.30", "python": "3.11.7"},
        "hardware": {"device": "cpu", "cores": 2, "name": "AMD EPYC"}, "git": {"commit": "0123abc", "dirty": False},
        "seed": seed, "class_names": labels, "class_counts": counts.tolist(),
        "relation_batch": 128 if related else None,
        "parameters": 464_154, "selection": "last epoch", "status": "finished",
        "command": f"relatum train {method.name} --train.seed {seed}",
        "seconds": 61.5 + 3 * related, "images_per_second": 902.0 - 31 * related,
    }  # fmt: skip


def run(
    folder: Path, method: Method = METHODS[0], *, seed: int = 0, classes: int = 20, epochs: int = 30,
    rule: str = "standard", counts: np.ndarray | None = None, directory: str | None = None,
) -> Path:  # fmt: skip
    """Write one finished run directory and return it."""
    counts = long_tail(classes) if counts is None else np.asarray(counts)
    final = simulate(method, counts, seed, rule=rule)
    path = Path(folder) / (directory or method.name)
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.toml").write_text(toml(config(method, seed, epochs, rule)), encoding="utf-8")
    described = manifest(method, counts, [row["name"] for row in final["per_class"]], seed)
    (path / "manifest.json").write_text(json.dumps(described), encoding="utf-8")
    (path / "scores.json").write_text(json.dumps({"test": final}), encoding="utf-8")
    rows = metric_rows(method, final, epochs, seed)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def add_sigmoid(path: Path, ece: float = 0.0321, mce: float = 0.0987) -> None:
    """Give a run the calibration of sigmoid confidences, as if it had been trained on sigmoids."""
    scores = json.loads((path / "scores.json").read_text())
    table = scores["test"]["reliability"]
    scores["test"]["sigmoid"] = {"bias": -2.9, "ece": ece, "mce": mce, "reliability": table}
    (path / "scores.json").write_text(json.dumps(scores), encoding="utf-8")


def pretrain(
    run_directory: Path, *, epochs: int = 20, seed: int = 0, related: bool = False, pixels: str = "normalised",
    neighbours: bool = True, every: int = 10, classes: int = 20,
) -> Path:  # fmt: skip
    """Write the first stage of a run, finished, into `run_directory`/pretrain and return that."""
    path = Path(run_directory) / "pretrain"
    (path / "pictures").mkdir(parents=True)
    rng, rows = np.random.default_rng(seed), []
    for epoch in range(1, epochs + 1):
        loss = float(0.4 + 0.7 * np.exp(-epoch / 8) + rng.normal(0, 0.005))
        parts = {"loss/plain": 0.98 * loss, "loss/related": 1.02 * loss} if related else {}
        rows.append({"kind": "train", "epoch": float(epoch), "step": 8 * epoch, "loss": loss, "lr": 1e-3, **parts})
        if epoch % every == 0 or epoch == epochs:
            mse = 0.05 * loss
            measured = {"loss": loss, "mse": mse, "psnr": float(-10 * np.log10(mse))}
            rows.append({"kind": "eval", "split": "test", "epoch": float(epoch), "step": 8 * epoch, **measured})
            picture(epoch, seed).save(path / "pictures" / f"epoch-{epoch:04d}.png")
    plain = RunConfig()
    first = dataclasses.replace(plain.pretrain, method="mae", epochs=epochs, pixels=pixels)
    settings = dataclasses.replace(plain, pretrain=first, train=dataclasses.replace(plain.train, seed=seed))
    found = {"kind": "reconstruction", "split": "test", "samples": 1000, **measured, "mask": "random", "ratio": 0.75}
    described = {"recipe": "livt", "stage": "pretrain", "relatum": "0.1.0", "status": "finished", "seed": seed}
    (path / "config.toml").write_text(toml(settings), encoding="utf-8")
    (path / "manifest.json").write_text(json.dumps(described), encoding="utf-8")
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (path / "scores.json").write_text(json.dumps({"test": {**found, "pixels": pixels}}), encoding="utf-8")
    if neighbours:
        scores = simulate(Method("k-nn", frequent=0.6, rare=0.05), long_tail(classes), seed)
        (path / "probe.json").write_text(json.dumps({"k-nn": {"test": scores}}), encoding="utf-8")
    return path


def picture(epoch: int, seed: int = 0, side: int = 64, rows: int = 4) -> Image.Image:
    """Draw originals, masked images and reconstructions that sharpen with the epochs."""
    rng = np.random.default_rng(seed)
    waves = np.sin(np.arange(rows * side)[:, None] / rng.uniform(4, 9)) * np.cos(np.arange(side) / 5)[None]
    shown = [waves, np.zeros_like(waves), waves * min(1.0, epoch / 20)]
    pixels = (127 + 120 * np.concatenate(shown, axis=1)).astype(np.uint8)
    return Image.fromarray(np.stack([pixels, pixels, 255 - pixels], axis=2))


def three_runs(folder: Path) -> Path:
    for i, method in enumerate(METHODS):
        run(folder, method, seed=i)
    return Path(folder)


if __name__ == "__main__":
    print(three_runs(Path(sys.argv[1])))
