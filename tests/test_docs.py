"""The documentation is true: its code runs and prints what it says, its links lead somewhere, its names exist."""

import importlib
import re
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import MISSING, fields, is_dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from relatum import config
from relatum.cli import VERBS
from relatum.config import RunConfig
from relatum.config_files import from_dict
from relatum.recipes.catalog import find_recipe, list_recipes

FOLDER = Path(__file__).parents[1] / "docs"
PAGES = sorted(FOLDER.glob("*.md"))
EXPECTED = {
    "batchformer-v2", "bench", "classifier-tools", "data", "distributed", "evaluate", "extending", "fast-training",
    "file-formats", "index", "livt", "models", "objectives", "pitfalls", "pretraining", "probes", "recipes", "relation",
    "report", "sweeps", "train", "when-it-helps",
}  # fmt: skip
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A text block directly below a python block is what that block prints.
PRINTED = re.compile(
    r"^```python\n(?P<code>(?:(?!^```).)*)^```\n\n?```text\n(?P<out>.*?)^```$", re.DOTALL | re.MULTILINE
)
OPTION_ROW = re.compile(r"^\| `(\w+)` \| `([^`]*)` \|", re.MULTILINE)
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each python block with what it should print, or None where the page does not say."""
    promised = {match.start(): match["out"] for match in PRINTED.finditer(text)}
    for match in FENCE.finditer(text):
        if match[1] == "python":
            yield match[2], promised.get(match.start())


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def test_every_room_has_its_page() -> None:
    assert {page.stem for page in PAGES} == EXPECTED


@by_page
def test_code_runs_and_prints_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": f"docs_{page.stem.replace('-', '_')}"}
    found = list(blocks(page.read_text(encoding="utf-8")))
    assert found or page.stem == "index", f"{page.name} has no code"
    for number, (code, promised) in enumerate(found, 1):
        stream = StringIO()
        with redirect_stdout(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(code, f"{page.name} block {number}", "exec"), namespace)
        if promised is not None:
            assert stream.getvalue().rstrip() == promised.rstrip(), f"{page.name} block {number}"


def test_output_of_most_blocks_is_compared() -> None:
    pairs = [out for page in PAGES for _, out in blocks(page.read_text(encoding="utf-8"))]
    assert len(pairs) >= 20
    assert sum(out is not None for out in pairs) >= len(pairs) // 2


@by_page
def test_only_known_kinds_of_blocks(page: Path) -> None:
    assert {match[1] for match in FENCE.finditer(page.read_text(encoding="utf-8"))} <= {"python", "text", "toml"}


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    if page.stem == "index":
        assert {f"{name}.md" for name in EXPECTED - {"index"}} <= set(links)
    for link in links:
        target, _, anchor = link.partition("#")
        assert not target.startswith("http"), f"{page.name}: {link} leaves the repository"
        found = (page.parent / target) if target else page
        assert found.exists(), f"{page.name}: {link}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: {link}"


def resolve(dotted: str) -> Any:
    """Import the longest module of a dotted name and take the rest from it."""
    parts = dotted.split(".")
    value: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        if isinstance(value, ModuleType) and not hasattr(value, part):
            value = importlib.import_module(".".join(parts[:at]))
        elif is_dataclass(value) and part in {f.name for f in fields(value)}:
            return value  # an attribute that only instances have
        else:
            value = getattr(value, part)
    return value


def test_resolve_refuses_what_is_not_there() -> None:
    assert resolve("relatum.data.shapes.shapes_source").__name__ == "shapes_source"
    with pytest.raises((AttributeError, ImportError)):
        resolve("relatum.data.shapes.no_such_thing")
    with pytest.raises((AttributeError, ImportError)):
        resolve("relatum.BatchFormerV9")


@by_page
def test_dotted_names_exist(page: Path) -> None:
    for quoted in re.findall(r"`([^`\n]+)`", prose(page)):
        for dotted in re.findall(r"\brelatum(?:\.[A-Za-z_]\w*)+", quoted):
            resolve(dotted)


@by_page
def test_paths_in_the_repository_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|examples|docs|tests)/[\w./-]+)`", prose(page)):
        assert (FOLDER.parent / path).exists(), f"{page.name}: {path}"


@by_page
def test_verbs_recipes_and_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for verb in re.findall(r"(?:`|\$ )relatum ([a-z]+)\b", text):
        assert verb in VERBS, f"{page.name}: relatum {verb}"
    for recipe in re.findall(r"relatum (?:train|recipes show|recipes copy) ([^\s`]+)", text):
        if recipe.islower() and not recipe.endswith(".toml"):  # upper case stands for a name of the reader's
            find_recipe(recipe)
    rooms = {f.name: f.default_factory for f in fields(RunConfig) if f.default_factory is not MISSING}
    for room, key in re.findall(r"--(\w+)\.(?:no-)?([\w-]+)", text):
        assert key.replace("-", "_") in {f.name for f in fields(rooms[room])}, f"{page.name}: --{room}.{key}"  # type: ignore[arg-type]


def test_the_table_of_recipes_is_complete() -> None:
    section = (FOLDER / "recipes.md").read_text(encoding="utf-8").split("## Which one")[1].split("\n## ")[0]
    written = re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)
    assert sorted(written) == [recipe.name for recipe in list_recipes() if "/" not in recipe.name]


def test_recipe_files_on_the_pages_are_valid() -> None:
    tables = [
        match[2] for page in PAGES for match in FENCE.finditer(page.read_text(encoding="utf-8")) if match[1] == "toml"
    ]
    assert tables
    for text in tables:
        table = tomllib.loads(text)
        parent = table.pop("extends", None)
        if parent is not None:
            find_recipe(parent.removesuffix(".toml"))
        from_dict(table, "documentation")


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("data", "DataConfig"),
        ("models", "ModelConfig"),
        ("relation", "RelationConfig"),
        ("objectives", "ObjectiveConfig"),
        ("train", "TrainConfig"),
        ("pretraining", "PretrainConfig"),
        ("evaluate", "EvalConfig"),
    ],
)
def test_option_tables_are_complete_and_right(page: str, name: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## [^\n]*`{name}`[^\n]*$", text, re.MULTILINE)
    assert heading is not None
    section = text[heading.end() :].split("\n## ")[0]
    written = dict(OPTION_ROW.findall(section))
    true = {f.name: repr(f.default).replace("'", '"') for f in fields(getattr(config, name))}
    assert written == true


@by_page
def test_pages_are_of_readable_length(page: Path) -> None:
    assert 40 <= len(page.read_text(encoding="utf-8").splitlines()) <= 220
