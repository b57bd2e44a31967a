"""A library above the row limit: approximate answers that say so, and nothing stale."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from calligram.checksums import sealed
from calligram.cli.main import app
from calligram.data.write_collection import write_draft
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.manifest import read_manifest
from calligram.search.query.encoded_query import ImageSearch
from calligram.search.query.query import Query
from calligram.search.query.searcher import Searcher
from calligram.search.vectors import mapped
from calligram.serve.server import create_app
from calligram.serve.settings import ServerSettings


@pytest.fixture(autouse=True)
def low_limit(monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_ROWS", 10)


def brute_force(library: Library, query: np.ndarray) -> list[str]:
    """Ids of all present items, best first."""
    ids = [row["id"] for row in library.rows() if row["state"] == "present"]
    scores = dict(zip(ids, (library.images.vectors(ids) @ query).tolist(), strict=True))
    return sorted(ids, key=lambda id: (-scores[id], id))


def test_the_manifest_names_the_files_and_what_they_find(indexed):
    manifest = read_manifest(indexed)
    record = manifest.mapped["index.images"]
    assert "index.captions" not in manifest.mapped
    assert (record["rows"], record["limit"]) == (12, 10)
    assert record["recall"] >= 0.98
    library = Library.open(indexed)
    assert library.images.recall == library.stats()["recall"] == record["recall"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["info", str(indexed)], catch_exceptions=False).output
    assert "12 items, 0 captions, 0 gone, 0 problems" in shown
    assert "search of images: approximate (indexed above 10 rows), finds" in shown


def test_an_answer_says_whether_it_is_approximate(indexed):
    searcher = Searcher.open(indexed)
    found = searcher.images("a red disc", 12, all=True)
    assert found.recall == searcher.library.images.recall
    exact = searcher.images("a red disc", 12, all=True, exact=True)
    assert exact.recall is None
    assert exact.hits == found.hits, "twelve of twelve"
    assert searcher.texts("a red disc", all=True).recall is None
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    shown = run(app, ["search", str(indexed), "a red disc", "--all"], catch_exceptions=False).output
    assert "approximate search, which finds" in shown
    assert "approximate" not in run(app, ["search", str(indexed), "a red disc", "--all", "--exact"]).output
    for flag, wanted in (((), found.recall), (("--exact",), None)):
        printed = run(app, ["search", str(indexed), "a red disc", "--json", *flag], catch_exceptions=False).stdout
        assert json.loads(printed)["recall"] == wanted


def test_the_api_says_whether_an_answer_is_approximate(indexed):
    searcher = Searcher.open(indexed)
    with TestClient(create_app(searcher, ServerSettings()), base_url="http://localhost") as client:
        for exact, wanted in ((False, searcher.library.images.recall), (True, None)):
            answer = client.get("/api/search", params={"q": "a red disc", "exact": exact, "all": True}).json()
            assert answer["recall"] == wanted
        assert client.get("/api/stats").json()["stats"]["recall"] == searcher.library.images.recall


def test_a_batch_has_exact_and_approximate_searches(indexed):
    searcher = Searcher.open(indexed)
    query = Query.of("a red disc")
    searches = [ImageSearch(query, 12, all=True, exact=exact) for exact in (False, True, False)]
    found = searcher.image_batch(searches)
    assert [answer.recall is None for answer in found] == [False, True, False]
    assert found[0].hits == found[1].hits == found[2].hits


def test_changes_are_known_at_once_and_forgotten_pictures_never_appear(models, photos, indexed, photograph, by_path):
    photograph(photos / "new.jpg", 77)
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, indexed)
    library = Library.open(indexed)
    ids = by_path(library)
    query = library.images.vectors([ids["new.jpg"]])
    assert library.images.search(query, 1)[0][0].id == ids["new.jpg"]
    assert [hit.id for hit in library.images.search(query, 99)[0]] == brute_force(library, query[0])
    vector = library.images.vectors([ids["new.jpg"]]).astype(np.float16).tobytes()
    files = indexed / "1" / "index" / "images.mapped"
    assert any(vector in file.read_bytes() for file in files.rglob("*.f16"))
    forget_items(indexed, [ids["new.jpg"]])
    library = Library.open(indexed)
    assert library.images.recall is not None
    assert ids["new.jpg"] not in {hit.id for hit in library.images.search(query, 99)[0]}
    assert not any(vector in file.read_bytes() for file in files.rglob("*.f16"))


def test_files_that_are_gone_are_written_by_the_next_run(models, photos, indexed, caplog):
    import shutil

    wanted = Searcher.open(indexed).images("a red disc", 12, all=True)
    shutil.rmtree(indexed / "1" / "index" / "images.mapped")
    without = Searcher.open(indexed).images("a red disc", 12, all=True)
    assert "the next calligram index writes it again" in caplog.text
    assert (without.hits, without.recall) == (wanted.hits, None)
    assert index_source(models, photos, indexed).counts["unchanged"] == 12
    assert Searcher.open(indexed).images("a red disc", 12, all=True).recall == wanted.recall


def test_a_library_written_before_there_were_mapped_files_gets_them(models, photos, indexed, monkeypatch):
    file = indexed / "library.json"
    content = json.loads(file.read_text())
    del content["mapped"]
    file.write_text(json.dumps(sealed(content)))
    assert Library.open(indexed).images.recall is None
    index_source(models, photos, indexed)
    assert Library.open(indexed).images.recall is not None


def test_captions_are_mapped_too_and_each_kind_tries_the_other(models, tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection")
    index_source(models, tmp_path / "collection", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert len(library) >= 10
    assert library.images.recall is not None
    assert library.captions.recall is not None
    assert Searcher.open(tmp_path / "library").texts("a red disc", all=True).recall == library.captions.recall


def test_a_rebuilt_library_has_files_of_its_own(models, photos, indexed):
    index_source(models, photos, indexed, rebuild=True)
    library = Library.open(indexed)
    assert library.manifest.generation == 2
    assert library.images.recall is not None
    assert (indexed / "2" / "index" / "images.mapped" / "1").is_dir()


def test_a_reader_keeps_its_version_while_the_library_changes(models, photos, indexed, photograph):
    before = Library.open(indexed)
    query = np.ones((1, before.images.dim), np.float32)
    wanted = before.images.search(query, 99, exact=True)
    for seed in range(60, 66):
        photograph(photos / f"later_{seed}.jpg", seed)
    index_source(models, photos, indexed)
    assert before.images.search(query, 99, exact=True) == wanted
    assert len(before.images.search(query, 99)[0]) == 12
    assert len(before.refreshed().images.search(query, 99)[0]) == 18
