"""All verbs one after the other, as a user with a folder of images goes through them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace

from relatum.recipes import demo


def test_from_a_folder_to_an_exported_model(relatum, photos, tmp_path):
    code, out, err = relatum("inspect", photos)
    assert (code, err) == (0, "") and out.endswith("plot: class-counts.png\n")
    assert (tmp_path / "class-counts.png").stat().st_size > 1000
    code, out, _ = relatum("inspect", photos, "--json")
    assert code == 0 and json.loads(out)["splits"]["train"]["samples"] == 30

    relatum("recipes", "copy", "shapes-lt", "mine.toml")
    text = (tmp_path / "mine.toml").read_text().replace('kind = "shapes"', 'kind = "folder"')
    for old, new in (("image_size = 32", "image_size = 16"), ("batch_size = 64", "batch_size = 8")):
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "mine.toml").write_text(text.replace('long_tail = "exponential"', 'long_tail = "none"'))
    words = ("train", "mine.toml", "--data.root", photos, "--train.max-steps", 2, "--train.threads", 1)
    code, out, err = relatum(*words)
    assert code == 0 and "Traceback" not in err
    assert "mine-s0 (val)" in out and "val: 6 images; top-1 " in out
    assert out.splitlines()[-3:] == [
        "run:  runs/mine-s0",
        "next: relatum report runs/mine-s0",
        "      relatum predict runs/mine-s0 IMAGE ...",
    ]

    again = relatum(*words)
    assert again == (0, out, "runs/mine-s0 is finished already.\n")

    code, out, err = relatum("evaluate", "runs/mine-s0", "--shot-rule", "thirds", "--adjust-tau", 1, "--tau-norm", 0.5)
    assert (code, err) == (0, "")
    assert "shot rule thirds" in out and "logit adjustment (tau 1)" in out and "tau 0.5" in out
    code, out, _ = relatum("evaluate", "runs/mine-s0", "--json", "--bootstrap", 0)
    assert code == 0 and json.loads(out)["val"]["interval"] is None

    code, out, err = relatum("predict", "runs/mine-s0", photos / "ant", photos / "bee" / "0.png")
    assert (code, err) == (0, "") and out.count(".png") == 11
    code, out, _ = relatum("predict", "runs/mine-s0", photos, "--format", "csv", "--top", 2)
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0 and len(rows) == 30 and set(rows[0]) > {"path", "class_2", "probability_2"}
    assert relatum("predict", "runs/mine-s0", photos, "--format", "json", "--out", "p.json") == (0, "p.json\n", "")
    predicted = json.loads((tmp_path / "p.json").read_text())
    assert [entry["path"] for entry in predicted] == [row["path"] for row in rows]
    assert [entry["predictions"][0]["class"] for entry in predicted] == [row["class_1"] for row in rows]

    assert relatum("report", "runs/mine-s0") == (0, "runs/mine-s0/report.html\n", "")
    relatum(*words, "--out", "other", "--train.seed", 1)
    code, out, err = relatum("report", "runs/mine-s0", "other", "--out", "both.html")
    assert (code, out, err) == (0, "both.html\n", "")
    assert "other" in (tmp_path / "both.html").read_text()

    code, out, err = relatum("export", "runs/mine-s0", "model", "--formats", "safetensors")
    assert (code, err) == (0, "") and out.startswith("safetensors   model/model.safetensors")
    assert (tmp_path / "model" / "README.md").exists()


def test_the_real_program_speaks_only_where_it_should(finished, photos):
    """Exit codes and streams of the installed command, in a process of its own."""
    command = [sys.executable, "-m", "relatum.cli"]
    done = subprocess.run([*command, "predict", finished, photos / "ant", "--format", "csv"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 11
    done = subprocess.run([*command, "recipes", "shw"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error():
    script = f"{sys.executable} -m relatum.cli recipes | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_demo_trains_three_runs_and_prints_the_report_last(relatum, tmp_path, monkeypatch):
    _small_demo(monkeypatch)
    code, out, err = relatum("demo", "--epochs", 1, "--out", "demo")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("│")][2].startswith("│ balanced-softmax+batchformer")
    page = out.splitlines()[-1]
    assert page.endswith("report.html") and "balanced-softmax+batchformer" in (tmp_path / page).read_text()
    assert [f"{i}/3" for i in (1, 2, 3)] == [line.split()[0] for line in err.splitlines()]
    runs = [f"demo/{name} is finished already." for name in demo.VARIANTS]
    assert relatum("demo", "--epochs", 1, "--out", "demo") == (0, out, "\n".join(runs) + "\n")


def _small_demo(monkeypatch):
    """Leave the demo as it is, with fewer and smaller images."""
    settings = demo._settings

    def small(*args):
        config = settings(*args)
        data = replace(config.data, largest=12, imbalance=6.0, image_size=16, batch_size=32)
        return replace(config, data=data, evaluate=replace(config.evaluate, bootstrap=0))

    monkeypatch.setattr(demo, "_settings", small)
