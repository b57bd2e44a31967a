"""Rows of studies have the settings that their claims are about."""

from __future__ import annotations

import pytest

from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.schedule import trained_stages
from calligram.studies.catalog import STUDIES
from calligram.studies.dual_path import DUAL_PATH
from calligram.studies.two_branch import TWO_BRANCH

DUAL_PATH_ROWS = {row.name: row for row in DUAL_PATH.rows}


def settings_of(row):
    return resolve(PRESETS[row.preset].defaults, row.changes)


@pytest.mark.parametrize("name", [name for name in DUAL_PATH_ROWS if name.startswith("as printed")])
def test_rows_as_printed_have_classifier_head_and_margin_of_dual_path(name):
    settings, paper = settings_of(DUAL_PATH_ROWS[name]), PRESETS["dual-path-paper"].defaults
    (ranking, instance), (own_ranking, own_instance) = paper.terms, settings.terms
    assert (own_ranking.margin, own_instance) == (ranking.margin, instance)
    assert settings.matcher[0].head == paper.matcher[0].head == "paper"
    assert settings.text.cnn.pooling == paper.text.cnn.pooling


@pytest.mark.parametrize("name", [name for name in DUAL_PATH_ROWS if "ranking only, stage I" in name])
def test_ranking_alone_starts_with_a_warm_up_in_stage_i(name):
    """The hardest negatives from the first step collapse the vectors, and a collapsed row is no baseline."""
    if name == "ranking only, stage II":  # did not collapse, and its results stand
        return
    first = trained_stages(settings_of(DUAL_PATH_ROWS[name]))[0][1]
    assert [term.name for term in first.terms] == ["ranking"]
    assert 0 < first.warmup_epochs < first.epochs


def test_rows_of_sentences_are_trained_for_equally_many_epochs():
    rows = [row for row in TWO_BRANCH.rows if row.preset in ("two-branch", "two-branch-similarity")]
    assert {settings_of(row).epochs for row in rows} == {20}


def test_rows_with_an_encoder_that_saw_test_captions_are_marked():
    study = STUDIES["mmca"]
    assert study.marked("mmca") == "mmca †"
    assert {row.name for row in study.rows if study.marked(row.name) == row.name} == set()
    others = STUDIES["a3vse"]
    # Its sentences are retrieved by the run of a row with MiniLM.
    assert others.marked("found by MiniLM, 10% x 1") == "found by MiniLM, 10% x 1 †"
    assert others.marked("10% x 1") == "10% x 1"
    photographs = STUDIES["photographs"]
    assert photographs.marked("ViT, end to end, GRU") == "ViT, end to end, GRU"
    assert photographs.marked("ViT, end to end, MiniLM").endswith("†")
