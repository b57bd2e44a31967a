"""Which lines of results are a study's rows."""

from __future__ import annotations

import json
from pathlib import Path

from calligram.recipes.catalog import recipe_named
from calligram.recipes.claims import Row, Study
from calligram.recipes.config import changed, resolve
from calligram.recipes.results import Result, read_results


def key_of(study: Study, row: Row) -> str:
    """The row's name in results."""
    return f"{study.paper}: {row.name}"


def settings_of(row: Row, changes: tuple[str, ...] = ()) -> dict[str, object]:
    """The row's settings, over changes to every row, as results have them: what differs from the recipe's defaults."""
    defaults = recipe_named(row.recipe).defaults
    plain: dict[str, object] = json.loads(json.dumps(changed(resolve(defaults, [*changes, *row.changes]), defaults)))
    return plain


def measured(
    study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()
) -> dict[str, dict[int, Result]]:
    """Results that stand for a study's rows on a collection, by row and seed: those of other settings do not."""
    found: dict[str, dict[int, Result]] = {row.name: {} for row in study.rows}
    rows = {key_of(study, row): row for row in study.rows}
    for result in read_results(results) if results.is_dir() else []:
        row = rows.get(result.study)
        if row is not None and result.collection == collection and result.settings == settings_of(row, changes):
            found[row.name][result.seed] = result
    return found
