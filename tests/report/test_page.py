"""The page: self-contained, escaped, complete, also for odd runs."""

import json
import re
from html.parser import HTMLParser

import pytest

from relatum.errors import CheckpointError
from relatum.report import load_records, report
from relatum.report.page import render

_VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Page(HTMLParser):
    """Checks nesting and gathers tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.ids = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def text(three_runs):
    return render(load_records([three_runs]))


@pytest.fixture(scope="module")
def page(text):
    return _Page(text)


def test_nothing_is_fetched(text, page):
    assert "://" not in text and "@import" not in text
    assert not page.named("script") and not page.named("link") and not page.named("iframe")
    for _, attributes in page.tags:
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:"))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_every_section_is_there(text, page):
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert headings == [
        "Comparison", "Who gains, who loses", "The rarest classes", "Training", "Reliability", "Classes",
        "Settings that differ", "Records",
    ]  # fmt: skip
    figures = [a for a in page.named("svg") if a.get("role") == "img"]
    assert len(figures) == 2 + 3 + 2 + 3 + 3 + 1 + 1
    words = " ".join(page.texts)
    for fact in ("1,000", "last epoch", "standard: many", "464,154", "relation_batch", "--train.seed 2", "0123abc"):
        assert fact in words


def test_figures_take_their_colours_from_the_page(text):
    svgs = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', text, flags=re.DOTALL)
    for svg in svgs:
        assert "currentColor" in svg and "<text" in svg
        assert not re.search(r"(fill|stroke): #(?!none)", svg)
        assert len(svg) < 25_000
    joined = "".join(svgs)
    assert {f"var(--run{i})" for i in range(3)} <= set(re.findall(r"var\(--run\d\)", joined))
    css = text[: text.index("</style>")]
    assert all(css.count(f"{name}:") >= 2 for name in re.findall(r"var\((--[a-z0-9]+)\)", joined))


def test_ids_are_unique_and_every_reference_has_one(text, page):
    assert len(page.ids) == len(set(page.ids)) > 20
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert used and used <= set(page.ids)


def test_accessible(page):
    assert all(a.get("scope") in ("col", "row") for a in page.named("th"))
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in page.named("svg"))
    assert ("html", {"lang": "en"}) in page.tags
    assert page.named("meta")[1]["content"].startswith("width=device-width")


def test_tables_scroll_in_their_own_box(text):
    assert text.count("<table") == len(re.findall(r'<div class="scroll"[^>]*>\s*<table', text))


def test_same_runs_same_bytes(three_runs, text):
    assert render(load_records([three_runs])) == text


def test_user_data_is_escaped(fabricate, tmp_path):
    evil = '<script>alert("1")</script>'
    path = fabricate.run(tmp_path, epochs=2, directory="<b>bold & $x$")
    scores = json.loads((path / "scores.json").read_text())
    scores["test"]["per_class"][-1]["name"] = evil
    scores["test"]["per_class"][0]["name"] = "$v1.23456$"
    scores["test"]["worst_class"]["name"] = "<i>worst</i>"
    (path / "scores.json").write_text(json.dumps(scores))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "command": "<u>command", "selection": "<s>last"}))
    other = fabricate.run(tmp_path, fabricate.METHODS[1], epochs=2)
    for runs in ([path], [other, path]):
        text = render(load_records(runs))
        page = _Page(text)
        assert not {"script", "b", "i", "u", "s"} & {tag for tag, _ in page.tags}
        assert evil in page.texts and "<b>bold & $x$" in " ".join(page.texts) and "<u>command" in page.texts
        assert "<b>bold" in " ".join(a.get("aria-label", "") for a in page.named("svg"))
        assert "$v1.23456$" in page.texts  # a tick of the confusion map: neither mathematics nor a number to round


def test_one_run_writes_into_its_directory(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    written = report([path])
    assert written == path / "report.html"
    text = written.read_text(encoding="utf-8")
    assert "Scores</h2>" in text and "Settings that differ" not in text and 'class="best"' not in text
    assert sorted(p.name for p in path.iterdir() if p.name.endswith(".part")) == []


def test_several_runs_write_into_the_common_parent(fabricate, tmp_path, monkeypatch):
    monkeypatch.setattr("relatum.report.page.render", lambda records: "page")  # only the place matters here
    for side in ("a", "b"):
        fabricate.run(tmp_path / side, epochs=2)
    runs = [tmp_path / "a" / "cross-entropy", tmp_path / "b" / "cross-entropy"]
    assert report(runs) == tmp_path / "report.html"
    assert report(runs, tmp_path / "new" / "page.html").is_file()
    assert report(runs, tmp_path / "a") == tmp_path / "a" / "report.html"


def test_an_unwritable_place_is_one_clear_error(fabricate, tmp_path):
    path = fabricate.run(tmp_path, epochs=2)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="--out"):
        report([path], tmp_path / "file" / "page.html")


def test_unfinished_runs_are_shown_as_such(fabricate, tmp_path):
    done, open_run = fabricate.run(tmp_path, epochs=2), fabricate.run(tmp_path, fabricate.METHODS[1], epochs=4)
    assert [record.state() for record in load_records([done, open_run])] == ["", ""]
    (open_run / "scores.json").unlink()
    manifest = json.loads((open_run / "manifest.json").read_text())
    (open_run / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    text = render(load_records([done, open_run]))
    assert "balanced-softmax is not finished (interrupted: epoch 4 of 4, last evaluation on test)" in text
    assert "No final scores yet" in render(load_records([open_run]))


@pytest.mark.parametrize("kept", ["config.toml", "manifest.json", "metrics.jsonl", "scores.json"])
def test_a_page_from_any_single_file(fabricate, tmp_path, kept):
    path = fabricate.run(tmp_path, epochs=2)
    for file in path.iterdir():
        if file.is_file() and file.name != kept:
            file.unlink()
    _Page(report([path]).read_text(encoding="utf-8"))


def test_many_classes_get_pairs_instead_of_a_map_and_a_page_that_stays_small(fabricate, tmp_path):
    small = render(load_records([fabricate.run(tmp_path, epochs=2, classes=30)]))
    assert "Confusion ·" in small and "Most confused" not in small
    many = fabricate.run(tmp_path, epochs=2, classes=300, directory="many")
    text = render(load_records([many]))
    assert "Most confused" in text and "Confusion ·" not in text and "means of neighbouring classes" in text
    assert len(text) < 200_000


def test_degenerate_runs_have_a_page(fabricate, tmp_path):
    no_image = fabricate.run(tmp_path, epochs=1, classes=4, counts=[300, 50, 1, 0], directory="zero")
    two = fabricate.run(tmp_path, epochs=1, classes=2, counts=[5, 5], directory="two", rule="thirds")
    scores = json.loads((no_image / "scores.json").read_text())
    scores["test"]["per_class"][3].update(support=0, accuracy=None, precision=None)
    scores["test"].update(interval=None, worst_class=None, nll=float("nan"))
    (no_image / "scores.json").write_text(json.dumps(scores))
    text = render(load_records([no_image]))
    assert "1 without any image" in text and "nan" not in " ".join(_Page(text).texts)
    for runs in ([two], [no_image, two]):
        _Page(render(load_records(runs)))


def test_seeds_are_drawn_as_their_mean(fabricate, tmp_path):
    for seed in (0, 1):
        fabricate.run(tmp_path, seed=seed, epochs=2, directory=f"run-s{seed}")
    text = render(load_records([tmp_path]))
    assert "mean ± std, seeds 0, 1" in text and "drawn as their mean" in text
    assert "drawn as their mean" not in render(load_records([tmp_path / "run-s0"]))


def test_streams_are_drawn_for_runs_with_a_relation_only(fabricate, tmp_path):
    related = fabricate.run(tmp_path, fabricate.METHODS[2], epochs=4)
    plain = fabricate.run(tmp_path, fabricate.METHODS[0], epochs=4)
    drawn = render(load_records([related]))
    assert "Agreement of plain and related stream" in drawn and "Loss of the related stream minus" in drawn
    assert "Agreement of plain and related stream" not in render(load_records([plain]))
