"""Recipe files and command lines gone wrong: every one gives a valid config or one clear error."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relatum.recipes
from relatum.arguments import _config_options, override
from relatum.config import RunConfig
from relatum.config_files import LARGEST_RECIPE, check, to_toml
from relatum.errors import ConfigError, RelatumError
from relatum.recipes.catalog import copy_recipe, find_recipe, list_recipes

CASES = 2000
COMMANDS = 300
LONGEST_SECONDS = 60


def _mutator():
    spec = importlib.util.spec_from_file_location("recipe_mutator", Path(__file__).with_name("recipe_mutator.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


mutator = _mutator()


@pytest.fixture
def no_hang():
    """A case that waits or counts for ever is stopped, and fails."""

    def ring(*_: object) -> None:
        raise TimeoutError("a case did not come back")

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.alarm(LONGEST_SECONDS)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _neighbours(folder: Path) -> None:
    """Files that `extends` may meet."""
    (folder / "circle.toml").write_text('extends = "self.toml"\n')
    (folder / "large.toml").write_text("# " + "x" * LARGEST_RECIPE)
    (folder / "deep.toml").write_text("a = " + "[" * 50_000)
    (folder / "binary.toml").write_bytes(bytes(range(256)) * 8)
    os.mkfifo(folder / "pipe.toml")
    (folder / "folder.toml").mkdir()
    (folder / "link.toml").symlink_to("link.toml")


@pytest.fixture
def tree(tmp_path):
    """A copy of the shipped recipes, with odd neighbours in every folder."""
    root = Path(relatum.recipes.__path__[0])
    for recipe in list_recipes():
        target = tmp_path / "tree" / recipe.path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(recipe.path, target)
    files = sorted((tmp_path / "tree").rglob("*.toml"))
    for folder in {file.parent for file in files}:
        _neighbours(folder)
    assert len(files) == len(list_recipes()) >= 90
    return files


def _clear(error: Exception) -> bool:
    text = str(error)
    return bool(text) and len(text) < 5000 and "\x1b" not in text and "Traceback" not in text


def test_mutated_recipes_give_a_config_or_one_error(tree, no_hang):
    rng = random.Random(20240)
    originals = [(file, file.read_bytes()) for file in tree]
    valid = refused = 0
    for _ in range(CASES):
        file, content = rng.choice(originals)
        changed = file.with_name("self.toml")
        changed.write_bytes(mutator.mutate(rng, content))
        no_hang()
        try:
            config = find_recipe(str(changed)).config()
        except RelatumError as error:
            assert _clear(error)
            refused += 1
        else:
            changed.write_text(to_toml(config), encoding="utf-8")
            assert find_recipe(str(changed)).config() == config
            valid += 1
    assert valid > CASES // 10 and refused > CASES // 3


@pytest.mark.parametrize("parent", mutator.PARENTS)
def test_every_odd_parent(tree, no_hang, parent):
    file = tree[0].with_name("self.toml")
    file.write_text(f'extends = "{parent}"\n')
    no_hang()
    if parent in ("/proc/kmsg", "/proc/self/environ"):  # they claim to be empty, and are taken by their word
        assert find_recipe(str(file)).config() == RunConfig()
        return
    with pytest.raises(ConfigError) as caught:
        find_recipe(str(file)).config()
    assert _clear(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 60_000, b"#" * (LARGEST_RECIPE + 1), b"x" * 1000])
def test_showing_and_copying_a_broken_file(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(ConfigError):
        copy_recipe(str(tmp_path / "bad.toml"), tmp_path / "new.toml")
    assert not (tmp_path / "new.toml").exists()


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=150, deadline=None)
def test_any_bytes(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    try:
        find_recipe(str(file)).config()
    except RelatumError as error:
        assert _clear(error)


@given(name=st.text(max_size=60) | st.sampled_from(["a" * 10_000, "a" * 10_000 + ".toml", "\0.toml", "/", "..", "."]))
@settings(max_examples=150, deadline=None)
def test_any_name_of_a_recipe(name):
    try:
        find_recipe(name)
    except RelatumError as error:
        assert _clear(error)


def test_random_words_on_the_command_line(no_hang, capsys):
    rng = random.Random(7)
    options = list(_config_options(RunConfig()))
    outcomes = {"valid": 0, "refused": 0}
    for _ in range(COMMANDS):
        words = mutator.random_words(rng, options)
        no_hang()
        try:
            config = override(RunConfig(), "relatum train x", words, "")
            check(config, "command line")
        except RelatumError as error:
            assert _clear(error), words
            outcomes["refused"] += 1
        except SystemExit as stop:
            raise AssertionError(f"{words} went past our own check; tyro said {capsys.readouterr()}") from stop
        else:
            outcomes["valid"] += 1
    assert min(outcomes.values()) > COMMANDS // 50, outcomes
