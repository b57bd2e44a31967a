"""Rows of the two-branch study that must be able to show the effects of the paper."""

from __future__ import annotations

import pytest

from calligram.studies.results import settings_of
from calligram.studies.two_branch import EMBEDDING_ROWS, PHRASE_ROWS, SIMILARITY_ROWS, TWO_BRANCH


@pytest.mark.parametrize("name", [*EMBEDDING_ROWS, *SIMILARITY_ROWS])
def test_rows_of_table_1_come_with_and_without_the_geometry_of_boxes(name):
    plain, geometry = (settings_of(TWO_BRANCH.row(f"phrases: {row}")) for row in (name, f"{name}, geometry"))
    assert "region.geometry" not in plain
    assert geometry == {**plain, "region.geometry": 10.0}


@pytest.mark.parametrize("row", [row for row in PHRASE_ROWS if "ours" not in row.name], ids=lambda row: row.name)
def test_phrases_are_trained_with_dense_proposals_and_all_background_regions(row):
    """Two-branch, Sec. 4.1: augmented positives; Algorithm 1, step 3b: every background region is a candidate."""
    settings = settings_of(row)
    assert settings["region.training"] == "edgeboxes-dense"
    assert "region.proposals" not in settings
    assert "region_negatives" not in settings
