"""Score scales are measured when a library is committed and stored in its manifest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from calligram.checksums import sealed
from calligram.data.write_collection import write_draft
from calligram.files import lock_folder
from calligram.search.indexing import forget, writer
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.manifest import MANIFEST, read_manifest, write_manifest
from calligram.search.library.matchers import LibraryMatchers, load_encoders
from calligram.search.query import cutoff
from calligram.search.query.cutoff import UNKNOWN_SCALE, measure_scales, stored_scales, with_scales
from calligram.search.query.searcher import Searcher


@pytest.fixture
def library(models, photos, photograph, tmp_path):
    """A library of photographs, enough of them for cut-offs."""
    for seed in range(12, 70):
        photograph(photos / f"more_{seed}.jpg", seed)
    index_source(models, photos, tmp_path / "library")
    return tmp_path / "library"


def measured_now(folder):
    """What opening a library computed before scales were stored."""
    library = Library.open(folder)
    return measure_scales(library, *load_encoders(folder, library.manifest))


@pytest.fixture
def no_measuring(monkeypatch):
    """Fails when anything is measured."""

    def refuse(*given):
        raise AssertionError("scales are measured")

    return lambda: [monkeypatch.setattr(module, "measure_scales", refuse) for module in (cutoff, writer)]


def count_measurements(monkeypatch) -> list[int]:
    """Gets an entry for each measurement."""
    counts: list[int] = []
    for module in (cutoff, writer):
        monkeypatch.setattr(module, "measure_scales", lambda *given: counts.append(1) or measure_scales(*given))
    return counts


def without_scales(folder):
    """The library as an earlier version wrote it."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["scales"]
    (folder / MANIFEST).write_text(json.dumps(sealed(content)))


def test_indexing_stores_what_opening_would_measure_and_opening_measures_nothing(library, no_measuring):
    expected = measured_now(library)
    assert expected.across != UNKNOWN_SCALE
    no_measuring()
    assert Searcher.open(library).scales == expected


def test_an_indexing_run_measures_once_and_one_without_changes_not_at_all(
    models, photos, photograph, library, monkeypatch
):
    counts = count_measurements(monkeypatch)
    photograph(photos / "new.jpg", 300)
    index_source(models, photos, library)
    assert len(counts) == 1
    index_source(models, photos, library)
    assert len(counts) == 1
    assert Searcher.open(library).scales == measured_now(library)
    assert len(counts) == 1


def test_captions_that_change_are_measured(models, tiny_draft, tmp_path, no_measuring):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures", 4)
    write_draft(draft, tmp_path / "collection")
    index_source(models, tmp_path / "collection", tmp_path / "library")
    before = Searcher.open(tmp_path / "library").scales
    draft.captions = [replace(caption, text=f"snow and {caption.text}") for caption in draft.captions]
    draft.phrases = []
    write_draft(draft, tmp_path / "collection", overwrite=True)
    index_source(models, tmp_path / "collection", tmp_path / "library")
    expected = measured_now(tmp_path / "library")
    no_measuring()
    assert Searcher.open(tmp_path / "library").scales == expected != before


def test_a_rebuilt_library_has_the_scales_of_its_new_matcher(photos, library, write_run, tmp_path, no_measuring):
    before = Searcher.open(library).scales
    index_source(LibraryMatchers.load(write_run(tmp_path / "other", seed=1)), photos, library, rebuild=True)
    expected = measured_now(library)
    no_measuring()
    assert Searcher.open(library).scales == expected != before


def test_forgetting_measures_the_remaining_items(library, no_measuring):
    before = Searcher.open(library).scales
    forget_items(library, [], where="name = 'more_20.jpg'")
    expected = measured_now(library)
    no_measuring()
    assert Searcher.open(library).scales == expected != before


def test_forgetting_works_without_the_matcher_and_leaves_measuring_to_the_first_search(library, monkeypatch):
    def missing(*given):
        raise forget.UserError("not there")

    with monkeypatch.context() as patched:
        patched.setattr(forget, "load_encoders", missing)
        assert forget_items(library, [], where="name = 'more_20.jpg'") == 1
    manifest = read_manifest(library)
    assert stored_scales(manifest, manifest.matcher.fingerprint, None) is None
    assert Searcher.open(library).scales == measured_now(library)


def test_the_first_search_of_an_older_library_measures_and_stores(library, no_measuring):
    without_scales(library)
    before = read_manifest(library)
    assert before.scales is None
    expected = measured_now(library)
    assert Searcher.open(library).scales == expected
    assert replace(read_manifest(library), scales=None) == before
    no_measuring()
    assert Searcher.open(library).scales == expected


def test_the_next_commit_of_an_older_library_measures_and_stores(models, photos, photograph, library, no_measuring):
    without_scales(library)
    photograph(photos / "new.jpg", 300)
    index_source(models, photos, library)
    expected = measured_now(library)
    no_measuring()
    assert Searcher.open(library).scales == expected


@pytest.mark.parametrize("obstacle", ["read-only", "disk full", "locked"])
def test_a_library_that_cannot_be_written_to_is_measured_in_memory(library, monkeypatch, obstacle):
    without_scales(library)
    content = (library / MANIFEST).read_bytes()
    if obstacle == "read-only":
        monkeypatch.setattr(cutoff.os, "access", lambda *given: False)
    elif obstacle == "disk full":

        def full(*given):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cutoff, "write_manifest", full)
    if obstacle == "locked":
        with lock_folder(library, "library"):
            scales = Searcher.open(library).scales
    else:
        scales = Searcher.open(library).scales
    assert scales == measured_now(library)
    assert (library / MANIFEST).read_bytes() == content


def test_a_commit_between_measuring_and_storing_is_not_overwritten(models, photos, photograph, library, monkeypatch):
    without_scales(library)

    def slow(*given):
        found = measure_scales(*given)
        photograph(photos / "new.jpg", 300)
        index_source(models, photos, library)
        return found

    opened = Library.open(library)
    encoders = load_encoders(library, opened.manifest)
    monkeypatch.setattr(cutoff, "measure_scales", slow)
    Searcher(opened, *encoders)
    assert len(Library.open(library)) == len(opened) + 1
    assert Searcher.open(library).scales == measured_now(library)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 7}, {"versions": {}}, {"matcher": "other"}, {"reranker": "other"}, {"measurement": 0},
        {"across": None}, {"images": {"mean": 0.0}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_scales_of_another_state_and_damaged_ones_are_not_used(library, change):
    manifest = read_manifest(library)
    write_manifest(library, replace(manifest, scales={**manifest.scales, **change}))
    stale = read_manifest(library)
    assert stored_scales(stale, manifest.matcher.fingerprint, None) is None
    assert Searcher.open(library).scales == measured_now(library)
    assert read_manifest(library) == manifest


def test_scales_are_for_the_matchers_that_are_used(library):
    manifest = read_manifest(library)
    assert stored_scales(manifest, manifest.matcher.fingerprint, None) is not None
    assert stored_scales(manifest, "other", None) is None
    assert stored_scales(manifest, manifest.matcher.fingerprint, "reranker") is None


def test_a_cutoff_without_an_estimate_is_stored_as_null(indexed):
    manifest = read_manifest(indexed)
    assert manifest.scales["across"]["cutoff"] is None
    assert stored_scales(manifest, manifest.matcher.fingerprint, None).across == UNKNOWN_SCALE
    assert "Infinity" not in (indexed / MANIFEST).read_text()
    scales = measured_now(indexed)
    assert with_scales(replace(manifest, scales=None), scales) == manifest


def test_a_searcher_that_is_refreshed_takes_the_stored_scales(models, photos, photograph, library, no_measuring):
    searcher = Searcher.open(library)
    photograph(photos / "new.jpg", 300)
    index_source(models, photos, library)
    expected = measured_now(library)
    no_measuring()
    assert searcher.refreshed().scales == expected


def test_a_searcher_keeps_its_scales_while_few_items_change_and_none_are_stored(
    models, photos, photograph, library, no_measuring
):
    searcher = Searcher.open(library)
    photograph(photos / "new.jpg", 300)
    index_source(models, photos, library)
    without_scales(library)
    no_measuring()
    assert searcher.refreshed().scales == searcher.scales
