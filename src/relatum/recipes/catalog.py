"""The recipes that come with the package, and how a name on the command line finds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from relatum.config import RunConfig
from relatum.config_files import from_dict, read_recipe, read_toml
from relatum.errors import ConfigError, suggest


@dataclass(frozen=True)
class Recipe:
    """One recipe, shipped or the user's.

    Args:
        name: how to call it, for example "cifar100-lt-100/cross-entropy".
        path: its TOML file.
        origin: how errors name it.
    """

    name: str
    path: Path
    origin: str

    @property
    def text(self) -> str:
        """The file as it is."""
        return read_recipe(self.path)

    @property
    def title(self) -> str:
        """The first line if it is a comment: what the recipe is; else its name."""
        first = self.text.partition("\n")[0]
        return first.lstrip("# ").strip() if first.startswith("#") else self.name

    def config(self) -> RunConfig:
        """The settings, with those of the file it extends."""
        config: RunConfig = from_dict(read_toml(self.path), self.origin)
        return config


def list_recipes() -> list[Recipe]:
    """Return all shipped recipes, sorted by name."""
    root = Path(str(resources.files("relatum.recipes")))
    return [
        Recipe(name, path, f"recipe {name}")
        for name, path in sorted((p.relative_to(root).with_suffix("").as_posix(), p) for p in root.rglob("*.toml"))
    ]


def find_recipe(name: str) -> Recipe:
    """Return the shipped recipe `name`, or the recipe file at that path."""
    if name.endswith(".toml"):
        if not _is(Path(name).is_file):
            raise ConfigError(f"there is no recipe file {name}; relatum recipes copy RECIPE writes one to start from.")
        return Recipe(Path(name).stem, Path(name), name)
    known = {recipe.name: recipe for recipe in list_recipes()}
    if name not in known:
        if _is(Path(name).is_dir):
            raise ConfigError(f"'{name}' is a folder, not a recipe; try: relatum train long-tail --data.root {name}")
        raise ConfigError(f"unknown recipe '{name}'; {suggest(name, known) or 'relatum recipes lists them all'}")
    return known[name]


def _is(question: Callable[[], bool]) -> bool:
    """Ask about a path; one that is too long for any file is none."""
    try:
        return question()
    except OSError:
        return False


def copy_recipe(name: str, target: Path) -> Path:
    """Write the recipe, with everything it extends merged in, to `target` for editing; never overwrites."""
    from relatum.config_files import to_toml

    recipe = find_recipe(name)
    if target.is_dir():
        target = target / f"{recipe.name.replace('/', '-')}.toml"
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name.")
    header = [line for line in recipe.text.splitlines() if line.startswith("#")]
    try:
        target.write_text("\n".join(header) + f"\n\n{to_toml(recipe.config())}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}.") from error
    return target
