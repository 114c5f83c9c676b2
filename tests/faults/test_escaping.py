"""Names from data, runs and settings stay text: in pages, figures, tables and on the terminal."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fabricated import fabricate
from rich.console import Console

from relatum.cli import main
from relatum.errors import DataError, RelatumError, printable
from relatum.predictions import write_predictions
from relatum.report.figures import confusion_map
from relatum.report.page import render
from relatum.report.records import load_records
from relatum.report.tables import comparison_table

NAMES = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)", "{{7*7}}", "{% raw %}x",
    "${7*7}", "$x^2$", "$\\frac{1}{$", "\\frac", "$$", "[red]red[/red]", "[/]", "[/nothing]", "[link=http://a]b", "]]>",
    "<!--", "</style>", "</title>", "</svg><script>x</script>", "&lt;b&gt;", "javascript:alert(1)", "a" * 3000, "%s%n",
]  # fmt: skip
STEERING = ["\x1b[31mred", "\x1b]0;title\x07", "back\x08space", "\x9b31m", "line\rover", "\u202ereversed"]

DIRECTORIES = ["<script>alert(2)<|script>", "$x^2$ [red] {{7*7}} <b>"]  # a slash cannot be in a name


class _Page(HTMLParser):
    """What a browser would see: elements with their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _edit(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _hostile_run(folder: Path, method, directory: str, names: list[str]) -> Path:
    path = fabricate.run(folder, method, epochs=2, directory=directory, classes=len(names))

    def scores(content) -> None:
        for row, name in zip(content["test"]["per_class"], names, strict=True):
            row["name"] = name
        content["test"]["worst_class"]["name"] = names[0]
        content["test"]["adjustment"] = names[1]

    def manifest(content) -> None:
        keys = ("recipe", "command", "selection", "relatum", "status")
        content |= {key: names[i % len(names)] for i, key in enumerate(keys)} | {"class_names": names}
        content["versions"] = {name: name for name in names[:4]}

    _edit(path / "scores.json", scores)
    _edit(path / "manifest.json", manifest)
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two runs whose classes, directories, recipes and settings are called by hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        _hostile_run(folder, method, name, NAMES)
        for method, name in zip(
            fabricate.METHODS, ["<script>alert(2)<|script>", "$x^2$ [red] {{7*7}} <b>"], strict=False
        )
    ]
    for run, word in zip(runs, ('"<img onerror=x>"', '"$\\\\frac{$"'), strict=True):
        text = (run / "config.toml").read_text()
        (run / "config.toml").write_text(text.replace('weights = ""', f"weights = {word!s}".replace('\\"', '"')))
    return runs


@pytest.fixture(scope="module")
def page_text(hostile):
    return render(load_records(hostile))


def test_nothing_in_a_page_comes_from_a_name(page_text, tmp_path):
    for method in fabricate.METHODS[:2]:
        fabricate.run(tmp_path, method, epochs=2)
    plain = {tag for tag, _ in _Page(render(load_records([tmp_path]))).tags}
    page = _Page(page_text)
    assert "script" not in plain and {tag for tag, _ in page.tags} <= plain
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    links = [a[key] for _, a in page.tags for key in ("href", "src", "xlink:href") if a.get(key)]
    assert all(link.startswith(("#", "data:image/")) for link in links)


def test_the_names_are_there_as_text(page_text):
    page = _Page(page_text)
    labels = " ".join(a.get("aria-label") or "" for _, a in page.tags)
    for name in (NAMES[0], NAMES[1], "{{7*7}}", "$x^2$", "\\frac", "[/]", "<script>alert(2)<|script>"):
        assert name in page.text + labels, name
    assert "49" not in {word.strip() for word in page.text.split("\n")}


@pytest.mark.parametrize("names", [NAMES[:12], NAMES[12:], [*STEERING, "\0", "日本語", "😀", "", "a\nb"]])
def test_names_are_ticks_of_a_figure_and_neither_mathematics_nor_an_end_of_it(tmp_path, names):
    run = _hostile_run(tmp_path, fabricate.METHODS[0], "run", names)
    svg = confusion_map(load_records([run])[0])
    page = _Page(svg)
    assert {tag for tag, _ in page.tags} <= {
        "svg",
        "g",
        "path",
        "text",
        "tspan",
        "defs",
        "use",
        "image",
        "rect",
        "clippath",
    }
    for name in names:
        assert name[:10].split("\n")[0] in page.text


def _shown(thing) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200, force_terminal=True, color_system=None).print(thing)
    return stream.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_names_are_no_markup_in_tables(hostile, name):
    entry = json.loads((hostile[0] / "scores.json").read_text())["test"]
    text = _shown(comparison_table({name: entry}, title="plain"))
    assert name[:20] in text
    stream = io.StringIO()
    write_predictions([(Path(name), [(name, 0.5)])], "table", stream)
    assert name[:8] in stream.getvalue()


@pytest.mark.parametrize("name", STEERING)
def test_names_do_not_steer_the_terminal_that_shows_predictions(name):
    stream = io.StringIO()
    write_predictions([(Path(name), [(name, 0.5)])], "table", stream)
    assert not set(stream.getvalue()) & set("\x1b\x07\x08\r\x9b\u202e")
    assert printable(name)[:6] in stream.getvalue()


@pytest.mark.parametrize("name", STEERING)
def test_names_do_not_steer_the_terminal_that_shows_errors(tmp_path, capsys, name):
    assert set(name) & set("\x1b\x07\x08\r\x9b\u202e")
    assert not set(str(DataError(f"no class {name}"))) & set("\x1b\x07\x08\r\x9b\u202e")
    for command in (
        ["train", name],
        [name],
        ["predict", name, name],
        ["report", name],
        ["train", "long-tail", f"--{name}"],
    ):
        assert main(command) == 2
        shown = capsys.readouterr().err
        assert not set(shown) & set("\x1b\x07\x08\r\x9b\u202e") and "relatum: error:" in shown


def test_plain_text_is_left_as_it_is():
    for text in ("Grüße, 日本語 😀 [x] <b> $1$", "two\nlines\tand a tab", ""):
        assert printable(text) == text and str(RelatumError(text)) == text
    assert len(str(RelatumError("x" * 10**6))) < 5000
