"""`relatum --help` is fast and complete; every verb explains itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relatum.arguments import _config_options
from relatum.cli import VERBS
from relatum.config import RunConfig
from relatum.recipes.catalog import list_recipes


def test_help_lists_every_verb_and_imports_nothing_heavy():
    script = (
        "import sys; from relatum.cli import main; code = main(['--help']); "
        "print(code, sorted({'torch', 'tyro', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stderr == ""
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("words", [[], ["-h"], ["help"]])
def test_no_words_and_other_spellings_of_help(relatum, words):
    assert relatum(*words) == relatum("--help")


def test_version(relatum):
    import relatum as package

    assert relatum("--version") == (0, f"relatum {package.__version__}\n", "")


@pytest.mark.parametrize("verb", [*VERBS, "recipes show", "recipes copy", "recipes list"])
def test_every_verb_has_a_help_page(relatum, verb):
    code, out, err = relatum(*verb.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: relatum {verb}")
    assert "{None}" not in out and "STR" not in out


def test_help_of_a_recipe_lists_every_setting_with_the_recipes_defaults(relatum):
    code, out, err = relatum("train", "shapes-lt", "--help")
    assert (code, err) == (0, "")
    missing = [name for name in _config_options(RunConfig()) if name not in out]
    assert missing == []
    assert "(default: shapes)" in out and "Generated shapes" in out


def test_help_wins_over_other_mistakes(relatum):
    assert relatum("evaluate", "--nonsense", "--help")[0] == 0


def test_recipes_lists_shows_and_copies(relatum, tmp_path):
    code, out, _ = relatum("recipes")
    assert code == 0 and relatum("recipes", "list")[1] == out
    assert [line.split()[0] for line in out.splitlines()] == [recipe.name for recipe in list_recipes()]
    assert 'kind = "shapes"' in relatum("recipes", "show", "shapes-lt")[1]
    code, out, _ = relatum("recipes", "copy", "shapes-lt/cross-entropy")
    assert code == 0 and out.splitlines()[-1] == "next: relatum train shapes-lt-cross-entropy.toml"
    copied = (tmp_path / "shapes-lt-cross-entropy.toml").read_text()
    assert copied.startswith("# Generated shapes") and 'name = "cross-entropy"' in copied and "extends" not in copied
