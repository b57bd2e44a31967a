"""Rows of studies have the settings that their claims are about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.schedule import trained_stages
from calligram.studies.a3vse import A3VSE
from calligram.studies.catalog import STUDIES
from calligram.studies.dual_path import DUAL_PATH, DUAL_PATH_PERSONS
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


def networks_of(study):
    """Names of the image networks of a study, by row."""
    found = {}
    for row in study.rows:
        settings = settings_of(row)
        parts = [getattr(settings, name, None) for name in ("image", "region")]
        found[row.name] = {Path(part.backbone).name for part in parts if part is not None and part.backbone}
    return found


def test_rows_have_the_image_network_of_their_study():
    lite2, resnet = {"efficientnet_lite2_256"}, {"resnet50"}
    for row, found in networks_of(TWO_BRANCH).items():
        assert found == (set() if row == "weighted distance" else lite2)
    for row, found in networks_of(DUAL_PATH).items():
        assert found == (lite2 if row.startswith("MiniLM") else resnet)
    for row, found in networks_of(A3VSE).items():
        assert found == (set() if row == "tags" else lite2)
    assert set.union(*networks_of(DUAL_PATH_PERSONS).values()) == {"mobilenet_v2_1.0_224"}


def test_pseudo_pairs_of_a_detector_are_compared_with_equal_training():
    """The rows differ only in pseudo pairs and their discriminators; captions are drawn with the seed of the run."""
    rows = {name: settings_of(A3VSE.row(f"{name}, 10% x 1")) for name in ("regions", "classes alone", "no s")}
    for claim in A3VSE.claims:
        if claim.factor > 1 and claim.better.removesuffix(", 10% x 1") in rows:
            assert (claim.worse, claim.metric[-3:]) == ("no s, 10% x 1", "r10")
    for name in ("regions", "classes alone"):
        assert rows[name].pseudo.sources == ("regions",)
        assert replace(rows[name], pseudo=rows["no s"].pseudo, terms=rows["no s"].terms) == rows["no s"]
    assert (rows["classes alone"].pseudo.attributes, rows["classes alone"].pseudo.sentences) == ("none", 1)
    assert (rows["no s"].sparse.length, rows["no s"].sparse.seed) == ("half", None)
