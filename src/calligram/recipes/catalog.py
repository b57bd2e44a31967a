"""Recipes and presets. A recipe is a program with settings; a preset is a recipe with values for its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calligram.errors import UserError, unknown
from calligram.lazy import entry_points_of
from calligram.records import parse_toml, record, text

if TYPE_CHECKING:
    from calligram.data.collection import Collection
    from calligram.recipes.parts.run import Plan, RunContext

PRESETS_FOLDER = Path(__file__).parent / "presets"
PRESET_KEYS = dict.fromkeys(("description", "recipe", "base"), text())
"""keys of a preset file that are not settings, with their schemas"""


@dataclass(frozen=True)
class Recipe:
    """A way to make a matcher from a collection. Its module is imported when its settings or its plan are used."""

    name: str
    module: str
    settings: str
    """name of the settings class in that module"""
    planner: str = "plan"
    """name of the function in that module that makes a plan from settings, a collection and a context"""
    learns: bool = True
    """whether it needs captioned images in train, and in dev to select a checkpoint"""

    @property
    def settings_class(self) -> type[Any]:
        """The class of its settings."""
        return getattr(import_module(self.module), self.settings)  # type: ignore[no-any-return]

    @property
    def plan(self) -> Callable[[Any, Collection, RunContext], Plan]:
        """The function that makes the plan of a run."""
        return getattr(import_module(self.module), self.planner)  # type: ignore[no-any-return]


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("pairs", "calligram.recipes.pairs", "PairsSettings", "plan_composition"),
        Recipe("phrases", "calligram.recipes.phrases", "PhrasesSettings"),
        Recipe("cca", "calligram.recipes.baselines", "CCARunSettings", "plan_cca"),
        Recipe("tags", "calligram.recipes.baselines", "TagsSettings", "plan_tags", learns=False),
        Recipe("ensemble", "calligram.recipes.ensemble", "EnsembleRunSettings", "plan_ensemble", learns=False),
        Recipe("combined", "calligram.recipes.ensemble", "CombinedSettings", "plan_combined"),
    )
}


@dataclass(frozen=True)
class Preset:
    """A recipe with values for its settings, read from a TOML file."""

    name: str
    description: str
    recipe: Recipe
    values: tuple[tuple[str, object], ...] = ()
    """settings that differ from those of its base, by dotted key"""
    file: Path | None = None
    base: Preset | None = None
    """preset that it changes; None for the defaults of the recipe"""

    @cached_property
    def defaults(self) -> Any:
        """The settings with the values of the preset."""
        from calligram.recipes.parts.config import replace_stages, with_values

        before = self.base.defaults if self.base is not None else self.recipe.settings_class()
        if any(key.startswith("stages.") for key, _ in self.values):
            before = replace_stages(before)  # a preset with stages has none of its base
        try:
            return with_values(before, self.values)
        except UserError as error:
            raise UserError(f"preset {self.name}: {error}") from error

    @property
    def given(self) -> frozenset[str]:
        """Keys of all settings that the preset and its bases set."""
        return frozenset(key for key, _ in self.values) | (self.base.given if self.base is not None else frozenset())


class Presets(Mapping[str, Preset]):
    """Presets by name: files of the package, and files that installed packages declare as entry points."""

    def __getitem__(self, name: str) -> Preset:
        file = PRESETS_FOLDER / f"{name}.toml"
        if file.is_file() and file.parent == PRESETS_FOLDER:
            return read_preset(file)
        declared = entry_points_of("calligram.presets")
        if name in declared:
            module, _, attribute = declared[name].partition(":")
            return read_preset(Path(getattr(import_module(module), attribute)), name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        names = [file.stem for file in sorted(PRESETS_FOLDER.glob("*.toml"))]
        return iter((*names, *(name for name in entry_points_of("calligram.presets") if name not in names)))

    def __len__(self) -> int:
        return len(list(iter(self)))


PRESETS = Presets()


def find_preset(name: str, derived: tuple[Path, ...] = ()) -> Preset:
    """Return a preset by name, or from a TOML file by its path; the error for an unknown name suggests the nearest one.

    Args:
        derived: files of the presets whose base it is.

    Raises:
        UserError: when there is no such preset or file.
    """
    if name.endswith(".toml"):
        return read_preset(Path(name), derived=derived)
    try:
        return PRESETS[name]
    except KeyError:
        raise unknown("preset", name, PRESETS) from None


def read_preset(file: Path, name: str = "", derived: tuple[Path, ...] = ()) -> Preset:
    """Read a preset from a TOML file: ``description``, ``recipe`` or ``base`` (another preset), and settings."""
    from calligram.recipes.parts.run_settings import flatten

    if (place := file.resolve()) in derived:
        raise UserError(f"preset {file} is its own base, by way of other presets; give another base")
    try:
        content = parse_toml(file, record({}, PRESET_KEYS, closed=False))
    except (OSError, ValueError) as error:
        raise UserError(f"preset {file} could not be read: {error}") from error
    own = {key: value for key, value in content.items() if key not in PRESET_KEYS}
    named = str(content.get("base", ""))
    if named.endswith(".toml"):  # from the folder of this file, so that presets can be used from any folder
        named = str((file.parent / Path(named).expanduser()).resolve())
    base = find_preset(named, (*derived, place)) if "base" in content else None
    recipe = str(content.get("recipe", base.recipe.name if base else "pairs"))
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    if base is not None and recipe != base.recipe.name:
        raise UserError(f"preset {file}: its base {base.name} is of recipe {base.recipe.name}, so leave recipe out")
    description = str(content.get("description", base.description if base else ""))
    return Preset(name or file.stem, description, RECIPES[recipe], tuple(flatten(own)), file, base)
