"""``calligram list``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from calligram.cli.screen import console


def list_(
    recipe: Annotated[str | None, typer.Argument(help="Show the settings of this recipe.")] = None,
) -> None:
    """List recipes, matchers, data formats and papers, or the settings of one recipe."""
    if recipe is not None:
        _settings(recipe)
        return
    from calligram.data.readers.catalog import READERS
    from calligram.models.catalog import MATCHERS
    from calligram.recipes.catalog import RECIPES
    from calligram.recipes.studies import STUDIES

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, found in RECIPES.items():
        table.add_row("recipe", name, found.about)
    for name, kind in MATCHERS.items():
        table.add_row("matcher", name, (kind.matcher.__doc__ or "").splitlines()[0])
    for name in READERS:
        table.add_row("format", name, f"calligram import {name} SOURCE DEST")
    for name, study in STUDIES.items():
        table.add_row("paper", name, f"{len(study.claims)} claims: calligram reproduce {name} COLLECTION")
    console.print(table)


def _settings(name: str) -> None:
    from calligram.recipes.catalog import recipe_named
    from calligram.recipes.config import settings_fields

    table = Table(title=f"settings of {name}: --set KEY=VALUE", title_justify="left", box=None)
    for heading in ("key", "default", "meaning"):
        table.add_column(heading)
    for field in settings_fields(recipe_named(name).defaults):
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        table.add_row(field.key, default or "''", field.about)
    console.print(table)
