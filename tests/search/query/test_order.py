"""Hits of equal score are ordered by id, in whatever order their rows are stored."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.searcher import Searcher
from calligram.serve.item_lists import filtered_ids
from calligram.serve.service import library_overview
from calligram.vectors import unit_rows

COPIES = 40


@pytest.fixture(scope="module")
def folder(photograph, tmp_path_factory):
    """Two pictures with many copies each, and some others."""
    folder = tmp_path_factory.mktemp("equal") / "photos"
    for seed in range(4):
        photograph(folder / f"dog {seed}" / "0.jpg", seed)
    for seed in (0, 1):
        for number in range(1, COPIES):
            shutil.copy(folder / f"dog {seed}" / "0.jpg", folder / f"dog {seed}" / f"{number}.jpg")
    return folder


def by_rows(out) -> dict[str, list[object]]:
    """What has an order that does not depend on vectors."""
    library = Library.open(out)
    overview = library_overview(library)
    found = {
        "keywords": library.full_text("dog", 25),
        "sample": overview.sample,
        "facets": overview.facets.items(),
        "stats": [list(values.items()) for values in library.stats()["facets"].values()],
    }
    return {name: list(rows) for name, rows in found.items()}


def by_score(out) -> dict[str, list[tuple[float, str]]]:
    """Answers of searches. Scores of two libraries may differ in the last digit, by the batches that were encoded."""
    searcher, library = Searcher.open(out), Library.open(out)
    found = {
        "text": searcher.images("a red disc", 60, all=True, hybrid=False).hits,
        "like": searcher.like(library.sample(1)[0], 60).hits,
    }
    ids = filtered_ids(library, "year >= 2000", 60)
    direction = unit_rows(np.random.default_rng(0).normal(size=(1, library.images.dim)).astype(np.float32))
    scores = (library.images.vectors(ids).astype(np.float64) * direction).sum(axis=1).astype(np.float32)
    return {
        **{name: [(-hit.score, hit.id) for hit in hits] for name, hits in found.items()},
        "filtered": [(-score, id) for score, id in zip(scores.tolist(), ids, strict=True)],
    }


@pytest.mark.parametrize("reranked", [False, True])
def test_equal_scores_are_ordered_by_id_also_after_a_rebuild_and_after_piecewise_indexing(
    folder, small_run, write_run, tmp_path, reranked
):
    models = LibraryMatchers.load(small_run, str(write_run(tmp_path / "second", 3)) if reranked else None)
    index_source(models, folder, tmp_path / "once")
    expected = by_rows(tmp_path / "once")
    assert [hit.id for hit in expected["keywords"]] == sorted(hit.id for hit in expected["keywords"])
    files = [file for file in sorted(folder.rglob("*.jpg")) if file.name != "0.jpg"]
    random.Random(0).shuffle(files)
    moved = [(file, file.rename(tmp_path / f"{number}.jpg")) for number, file in enumerate(files)]
    for start in range(0, len(moved), 30):
        index_source(models, folder, tmp_path / "pieces")
        for file, aside in moved[start : start + 30]:
            aside.rename(file)
    for out, rebuild in (("once", False), ("pieces", False), ("pieces", True)):
        index_source(models, folder, tmp_path / out, rebuild=rebuild)
        assert by_rows(tmp_path / out) == expected
        for hits in by_score(tmp_path / out).values():
            assert hits == sorted(hits)
            assert len({score for score, _ in hits}) < len(hits) / 2
