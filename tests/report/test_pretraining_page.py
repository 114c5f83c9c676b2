"""Masked pretraining in records and on the page: beside a classifier, before there is one, and on its own."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from relatum.errors import CheckpointError
from relatum.report import comparison_table, load_records, report
from relatum.report.headline import headline
from relatum.report.page import render
from relatum.report.pretraining import pretraining_section
from relatum.report.seeds import averaged


class _Words(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.words, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)


def _headings(text):
    return re.findall(r"<h2[^>]*>(.*?)</h2>", text)


def _pictures(text):
    return [base64.b64decode(found) for found in re.findall(r'src="data:image/png;base64,([^"]+)"', text)]


def test_a_run_of_two_stages_shows_both(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    assert pretraining_section(load_records([path])) is None
    stage = fabricate.pretrain(path)
    text = render(load_records([path]))
    assert {"Scores", "Masked pretraining", "Reliability"} <= set(_headings(text))
    found = json.loads((stage / "scores.json").read_text())["test"]
    near = json.loads((stage / "probe.json").read_text())["k-nn"]["test"]
    cells = ["random", "75.0\u00a0%", "normalised", "20", f"{found['loss']:.3f}", f"{found['mse']:.4f}"]
    cells += [f"{found['psnr']:.2f}\u00a0dB", f"{100 * near['top1']:.1f}"]
    cells += [f"{100 * near['groups'][name]['accuracy']:.1f}" for name in ("many", "medium", "few")]
    assert list(pretraining_section(load_records([path]))["rows"][0].cells) == cells
    words = " ".join(_Words(text).words)
    assert all(cell in words for cell in cells)
    assert "mean and the contrast of the true patches were used" in words
    for label in ("Loss of the pretraining", "Error on hidden patches", "PSNR of hidden patches"):
        assert f'aria-label="{label} of cross-entropy"' in text
    assert "Related minus plain loss of the pretraining" not in text


def test_first_and_newest_picture_are_embedded(fabricate, tmp_path):
    stage = fabricate.pretrain(tmp_path / "run", epochs=30)
    assert len(list((stage / "pictures").iterdir())) == 3
    text = render(load_records([tmp_path / "run"]))
    wanted = [(stage / "pictures" / f"epoch-{epoch:04d}.png").read_bytes() for epoch in (10, 30)]
    assert wanted[0] != wanted[1] and _pictures(text) == wanted
    assert "after epoch 30" in text and "after epoch 20" not in text
    assert "://" not in text
    assert all(a["alt"] for tag, a in _Words(text).tags if tag == "img")
    fabricate.pretrain(tmp_path / "other", epochs=10)
    both = pretraining_section(load_records([tmp_path]))["pictures"]
    assert [(picture.name, picture.when) for picture in both] == [
        ("other", "after epoch 10"),
        ("run", "after epoch 30"),
    ]
    (stage / "pictures" / "epoch-0030.png").write_bytes(b"cut")
    assert [p.when for p in pretraining_section(load_records([tmp_path / "run"]))["pictures"]] == ["after epoch 10"]


def test_related_and_raw_pixels(fabricate, tmp_path):
    fabricate.pretrain(tmp_path / "run", related=True, pixels="raw", neighbours=False)
    text = render(load_records([tmp_path / "run"]))
    assert "Related minus plain loss of the pretraining of run" in text
    assert "true patches were used" not in text and "k-NN" not in text and ">raw<" in text


@pytest.mark.parametrize("inside", [False, True])
def test_pretraining_alone_has_a_page_about_reconstruction(fabricate, tmp_path, inside):
    stage = fabricate.pretrain(tmp_path / "livt-s0")
    given = stage if inside else stage.parent
    (record,) = load_records([given])
    assert record.only_pretrained and not record.primary and record.path == given
    assert record.name == ("livt-s0/pretrain" if inside else "livt-s0")
    assert record.state() == ("" if inside else "pretrained, no classifier trained yet")
    written = report([given])
    assert written == given / "report.html"
    text = written.read_text(encoding="utf-8")
    psnr = json.loads((stage / "scores.json").read_text())["test"]["psnr"]
    assert f"<title>Hidden patches are reconstructed at {psnr:.1f}\u00a0dB</title>" in text
    assert _headings(text) == ["Masked pretraining", "Records"]
    assert ("no classifier trained yet" in text) != inside
    assert "relatum 0.1.0" in text and "Configuration of" in text
    assert comparison_table([record]).row_count == 1


def test_a_second_stage_that_has_only_begun_counts_as_pretrained(fabricate, tmp_path):
    stage = fabricate.pretrain(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text((stage / "config.toml").read_text())
    (record,) = load_records([tmp_path / "run"])
    assert record.only_pretrained
    assert render([record]).count("Configuration of") == 2  # the label of one table, and its title


def test_unfinished_pretraining_shows_its_last_measurement(fabricate, tmp_path):
    stage = fabricate.pretrain(tmp_path / "run")
    assert pretraining_section(load_records([tmp_path / "run"]))["rows"][0].cells[3] == "20"
    (stage / "scores.json").unlink()
    lines = [row for row in map(json.loads, (stage / "metrics.jsonl").read_text().splitlines()) if row["epoch"] <= 12]
    (stage / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    manifest = json.loads((stage / "manifest.json").read_text())
    (stage / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    (record,) = load_records([tmp_path / "run"])
    kept = [row for row in lines if row["kind"] == "eval"][-1]
    assert record.state() == "pretraining interrupted: epoch 12 of 20, last evaluation on test"
    assert headline([record])[0] == f"Hidden patches are reconstructed at {kept['psnr']:.1f}\u00a0dB"
    assert pretraining_section([record])["rows"][0].cells[3] == "12 of 20"
    (stage / "metrics.jsonl").unlink()
    (record,) = load_records([tmp_path / "run"])
    assert headline([record])[0] == "Masked pretraining, not measured yet"
    assert "Masked pretraining</h2>" in render([record])


def test_runs_with_and_without_a_first_stage_share_a_page(fabricate, tmp_path):
    fabricate.run(tmp_path, epochs=2)
    second = fabricate.run(tmp_path, fabricate.METHODS[1], epochs=2)
    fabricate.pretrain(second)
    fabricate.pretrain(tmp_path / "waiting", seed=1)
    records = load_records([tmp_path])
    assert {r.name: r.only_pretrained for r in records} == {
        "cross-entropy": False, "balanced-softmax": False, "waiting": True
    }  # fmt: skip
    text = render(records)
    assert "waiting is not finished (pretrained, no classifier trained yet)." in text
    assert _headings(text)[0] == "Comparison" and "Masked pretraining" in _headings(text)
    assert [row.name for row in pretraining_section(records)["rows"]] == [
        r.name for r in records if r.pretrain is not None
    ]
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_folder_of_runs_one_of_which_is_called_pretrain(fabricate, tmp_path):
    """Classifiers stay classifiers, whatever their directory is called."""
    fabricate.run(tmp_path, epochs=2, directory="pretrain")
    (record,) = load_records([tmp_path])
    assert record.has_scores and record.pretrain is None and record.name == "pretrain"
    fabricate.run(tmp_path, fabricate.METHODS[1], epochs=2)
    assert len(load_records([tmp_path])) == 2


def test_seeds_are_averaged_in_the_first_stage_too(fabricate, tmp_path):
    stages = []
    for seed in (0, 1):
        path = fabricate.run(tmp_path, seed=seed, epochs=2, directory=f"run-s{seed}")
        stages.append(fabricate.pretrain(path, seed=seed, related=True))
    records = load_records([tmp_path])
    (mean,) = averaged(records)
    psnr = [r.pretrain.reconstruction["psnr"] for r in records]
    near = [r.pretrain.probe["k-nn"]["test"]["groups"]["few"]["accuracy"] for r in records]
    gaps = [r.pretrain.metrics[0]["loss/related"] for r in records]
    assert psnr[0] != psnr[1] and near[0] != near[1] and gaps[0] != gaps[1]
    assert mean.pretrain.reconstruction["psnr"] == pytest.approx(sum(psnr) / 2)
    assert mean.pretrain.probe["k-nn"]["test"]["groups"]["few"]["accuracy"] == pytest.approx(sum(near) / 2)
    assert mean.pretrain.metrics[0]["loss/related"] == pytest.approx(sum(gaps) / 2)
    assert len(pretraining_section([mean])["rows"]) == 1


def test_what_comes_from_the_stage_is_escaped(fabricate, tmp_path):
    stage = fabricate.pretrain(tmp_path / "<b>run")
    scores = json.loads((stage / "scores.json").read_text())
    scores["test"].update(mask="<i>mask</i>", pixels="<u>raw")
    (stage / "scores.json").write_text(json.dumps(scores))
    (stage / "pictures" / "<s>.png").write_bytes((stage / "pictures" / "epoch-0010.png").read_bytes())
    page = _Words(render(load_records([tmp_path / "<b>run"])))
    assert not {"b", "i", "u", "s"} & {tag for tag, _ in page.tags}
    assert "<i>mask</i>" in page.words and "<u>raw" in page.words and "<b>run, <s>" in page.words


def test_a_broken_probe_is_one_clear_error(fabricate, tmp_path):
    stage = fabricate.pretrain(tmp_path / "run")
    assert load_records([stage.parent])
    (stage / "probe.json").write_text('{"k-nn": {"test": 0.5}}')
    with pytest.raises(CheckpointError, match=r"probe\.json.*probe again"):
        load_records([stage.parent])
