"""`relatum bench`: from words to tables and a file."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from relatum.bench import images, verb
from relatum.bench.verb import Words, parse_words, settings
from relatum.cli import main


def test_words_are_taken_apart():
    assert parse_words([]) == Words("", 5, 10, "", ())
    words = ["shapes-lt", "--rounds=2", "--train.lr", "0.2", "--steps", "3", "--json", "x.json", "--threads", "1"]
    assert parse_words(words) == Words("shapes-lt", 2, 3, "x.json", ("--train.lr", "0.2", "--threads", "1"))


def test_without_a_recipe_three_models_are_measured():
    found = settings(parse_words(["--threads", "1"]))
    assert [(c.model.name, c.stages) for _, c in found] == [
        ("resnet32-cifar", ("finetune",)),
        ("vit-nano-p4", ("finetune",)),
        ("vit-nano-p4", ("pretrain",)),
    ]
    assert all(c.data.batch_size == c.pretrain.batch_size == 128 and c.train.threads == 1 for _, c in found)


@pytest.mark.parametrize("words", [["--model.name", "resnet20-cifar"], ["--model.name=resnet20-cifar"]])
def test_a_model_is_measured_alone(words):
    assert [c.model.name for _, c in settings(parse_words(words))] == ["resnet20-cifar"]


def test_a_stage_can_be_chosen():
    ((_, config),) = settings(parse_words(["livt/cifar100-lt-100", "--stages", "pretrain"]))
    assert config.stages == ("pretrain",)


def test_a_recipe_keeps_its_batch():
    ((name, config),) = settings(parse_words(["cifar100-lt-100", "--train.epochs", "40", "--train.warmup-epochs", "1"]))
    assert (name, config.data.batch_size, config.train.epochs) == ("cifar100-lt-100", 512, 40)


def test_it_measures_out_of_the_box(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(images, "write_images", partial(images.write_images, train=200, test=100))
    monkeypatch.setattr("relatum.bench.speed.thread_counts", lambda device: [1])
    monkeypatch.setattr("relatum.bench.run.thread_counts", lambda device: [1])
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "bench.json"
    words = ["--model.name", "resnet20-cifar", "--data.batch-size", "4", "--threads", "1", "--data.workers", "1"]
    assert main(["bench", *words, "--rounds", "1", "--steps", "1", "--json", str(out)]) == 0
    shown = capsys.readouterr()
    assert "measuring on generated images" in shown.err
    assert "resnet20-cifar: batch 4" in shown.out
    assert sum(line.rstrip().endswith((" met", " missed")) for line in shown.out.splitlines()) == 4
    assert shown.out.splitlines()[-1] == str(out)
    kept = json.loads(out.read_text())
    (result,) = kept["results"]
    assert {"hardware", "versions", "rounds", "steps"} <= kept.keys()
    assert result["images_per_second"]["loop"]["median"] > 0
    assert {(entry["precision"], entry["threads"]) for entry in result["settings"]} == {("float32", 1), ("bfloat16", 1)}
    assert [entry["what"] for entry in result["bars"]] == [
        "real input / resident",
        "relatum / usual way",
        "beside the steps",
        "to the first step",
    ]


def test_real_data_is_not_replaced(monkeypatch):
    seen = []
    monkeypatch.setattr(verb, "_measure_and_tell", lambda configs, words: seen.extend(c.data for _, c in configs))
    monkeypatch.setattr(images, "write_images", lambda folder: pytest.fail("not asked for"))
    assert main(["bench", "shapes-lt"]) == 0
    assert main(["bench", "cifar100-lt-100", "--data.root", "somewhere"]) == 0
    assert [(data.kind, data.root) for data in seen] == [("shapes", ""), ("cifar100", "somewhere")]
