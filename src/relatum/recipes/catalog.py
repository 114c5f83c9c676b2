"""The recipes that come with the package, and how a name on the command line finds one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from relatum.config import RunConfig
from relatum.config_files import from_dict, read_toml
from relatum.errors import ConfigError, suggest


@dataclass(frozen=True)
class Recipe:
    """One shipped recipe.

    Args:
        name: how to call it, for example "cifar100-lt-100/cross-entropy".
        path: its TOML file.
    """

    name: str
    path: Path

    @property
    def text(self) -> str:
        """The file as it is."""
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The first comment line: what it is."""
        return self.text.splitlines()[0].lstrip("# ").strip()

    def config(self) -> RunConfig:
        """The settings, with those of the file it extends."""
        config: RunConfig = from_dict(read_toml(self.path), f"recipe {self.name}")
        return config


def list_recipes() -> list[Recipe]:
    """Return all shipped recipes, sorted by name."""
    root = Path(str(resources.files("relatum.recipes")))
    return [
        Recipe(path.relative_to(root).with_suffix("").as_posix(), path)
        for path in sorted(root.rglob("*.toml"), key=lambda p: p.with_suffix("").as_posix())
    ]


def find_recipe(name: str) -> Recipe:
    """Return the shipped recipe `name`, or the recipe file at that path."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"there is no recipe file {name}.")
        return Recipe(Path(name).stem, Path(name))
    known = {recipe.name: recipe for recipe in list_recipes()}
    if name not in known:
        raise ConfigError(f"unknown recipe '{name}'; {suggest(name, known)} (relatum recipes lists them all)")
    return known[name]


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
