"""Lines of results: the preset and the settings of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calligram.evaluation.localization import Localization
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import as_plain, resolve
from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Row
from calligram.studies.results import Result, localization_line, settings_of
from calligram.training.runs import Run

ANY = Localization(1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5, 6, 7.0)


def plain(preset: str, *changes: str) -> dict[str, Any]:
    return as_plain(resolve(find_preset(preset).defaults, changes))


@pytest.fixture
def line_of(tiny, tmp_path):
    """The line of a run whose run.json has some keys."""

    def line(about: dict[str, Any]) -> Result:
        shared = {"device": "cpu", "command": "calligram train", "commit": "abc"}
        return localization_line(Run.create(tmp_path / "run", {**shared, **about}), tiny, "test", ANY)

    return line


def test_a_line_has_the_settings_that_differ_from_the_preset(line_of):
    changes = ("terms=ranking", "ranking.top_k=none", "image.crop=0.5")
    found = line_of({"recipe": "pairs", "preset": "vse", "settings": plain("vse", *changes, "seed=3")})
    assert found.recipe == "vse"
    assert found.settings == {"terms": ["ranking"], "ranking.top_k": None, "image.crop": 0.5}
    assert found.settings == settings_of(Row("row", "vse", changes))
    assert found.seed == 3
    assert found.members == 1


def test_a_line_has_the_stages_that_differ_from_the_preset(line_of):
    settings = plain("dual-path", "stages.1.epochs=3", "stages.2.without=instance")
    found = line_of({"recipe": "pairs", "preset": "dual-path", "settings": settings})
    assert found.settings == {"stages.1.epochs": 3, "stages.2.without": ["instance"]}


@pytest.mark.parametrize(
    ("preset", "change", "count"),
    [("best-ensemble", "seed=0", 3), ("best", "matcher=mmca,vse", 2), ("ensemble", "runs=a,b", 2)],
)
def test_the_names_in_matcher_and_runs_are_the_members_of_an_ensemble(line_of, preset, change, count):
    recipe = find_preset(preset).recipe.name
    assert line_of({"recipe": recipe, "preset": preset, "settings": plain(preset, change)}).members == count


def test_a_preset_that_is_not_found_by_its_name_is_compared_with_its_recipe(line_of):
    settings = plain("scan", "matcher=vse")
    found = line_of({"recipe": "pairs", "preset": "mine", "settings": settings})
    assert found.recipe == "mine"
    assert "matcher" not in found.settings
    assert found.settings["text.hidden"] == 512


def test_a_loss_from_outside_is_recorded_as_it_is(line_of):
    settings = {**plain("vse"), "terms": ["loss"], "loss": {"weight": 1.0, "source": "mine:hinge"}}
    settings.pop("infonce")
    found = line_of({"recipe": "pairs", "preset": "vse", "settings": settings})
    assert found.settings == {"terms": ["loss"], "loss.weight": 1.0, "loss.source": "mine:hinge"}


def test_a_run_of_an_earlier_version_is_recorded_with_its_old_keys(line_of):
    settings = {"seed": 4, "ensemble_members": ["mmca", "vse"], "image": {"crop": 0.35}, "offline": {"epochs": 3}}
    found = line_of({"recipe": "best", "settings": settings})
    assert found.recipe == "best"
    assert found.settings == {"ensemble_members": ["mmca", "vse"], "image.crop": 0.35, "offline.epochs": 3}
    assert (found.seed, found.members) == (4, 2)


def test_all_sparse_levels_of_a3vse_cost_the_same():
    """Half of the steps of all captions in as many epochs, at every level; captions are drawn with the run's seed."""
    rows = [row for row in STUDIES["a3vse"].rows if row.preset != "tags"]
    settings = [resolve(find_preset(row.preset).defaults, row.changes) for row in rows]
    sparse = [each for each in settings if each.sparse.images < 1]
    assert len(sparse) > 50
    assert {(s.batch, s.texts, s.epoch_of, s.epochs, s.steps) for s in settings} == {(128, 1, "pairs", 10, 0)}
    assert {(s.sparse.length, s.sparse.seed) for s in sparse} == {("half", None)}


@pytest.mark.parametrize("paper", STUDIES)
def test_rows_of_a_study_differ(paper):
    rows = {repr((row.preset, settings_of(row))) for row in STUDIES[paper].rows}
    assert len(rows) == len(STUDIES[paper].rows)


def test_every_line_of_a_study_has_the_settings_of_its_row():
    """Otherwise a change of a preset makes a row lose its results without a word."""
    from calligram.studies.results import read_results, row_key

    rows = {row_key(study, row): row for study in STUDIES.values() for row in study.rows}
    wanted = {name: (row.preset, settings_of(row)) for name, row in rows.items()}
    lines = read_results(Path(__file__).parent.parent.parent / "results")
    assert [line.study for line in lines if line.study and (line.recipe, line.settings) != wanted[line.study]] == []
