"""What the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

from relatum.recipes.catalog import list_recipes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_prints_what_is_shown():
    code = re.search(r"```python\n(.*?)```", README, re.S)[1]
    shown = re.search(r"prints\n\n```text\n(.*?)```", README, re.S)[1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 10
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_the_recipe_table_is_complete():
    table = README.split("## Which recipe do I need?")[1].split("## ")[0]
    families = {recipe.name for recipe in list_recipes() if "/" not in recipe.name}
    assert families <= set(re.findall(r"`([a-z0-9-]+)`", table))


def test_nothing_is_left_to_fill_in():
    assert not re.findall(r"@[A-Z_0-9]+@", README)
    assert not [r.name for r in list_recipes() if re.search(r"@[A-Z_0-9]+@", r.text)]
