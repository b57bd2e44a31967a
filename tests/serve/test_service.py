"""The searcher behind the routes: faults, changes of the library, and its overview."""

from __future__ import annotations

import logging
import time

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.errors import UserError
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.searcher import Searcher
from calligram.serve.server import create_app
from calligram.serve.service import overview
from calligram.serve.settings import ServerSettings


@pytest.fixture
def searcher(library_folder) -> Searcher:
    return Searcher.open(library_folder)


def client(searcher: Searcher, **settings: object) -> TestClient:
    return TestClient(create_app(searcher, ServerSettings(**settings)), base_url="http://localhost")


def test_a_fault_is_answered_with_an_id_that_the_log_has_too(searcher, monkeypatch, caplog):
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(searcher, "images", break_down)
    with client(searcher) as asking, caplog.at_level(logging.ERROR):
        answer = asking.get("/api/search", params={"q": "a dog"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["id"] in caplog.text
    assert "a secret detail" in caplog.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_library_that_cannot_be_read_any_more_is_told_while_the_old_state_serves(searcher, monkeypatch):
    def fail() -> Searcher:
        raise UserError("the matcher has changed")

    monkeypatch.setattr(searcher, "refreshed", fail)
    with client(searcher, refresh=0.01) as asking:
        problem = None
        while problem is None:
            problem = asking.get("/api/health").json()["problem"]
        assert problem == "the matcher has changed"
        assert asking.get("/api/search", params={"q": "a dog", "all": True}).json()["hits"]


def test_a_search_that_takes_too_long_is_given_up(searcher, monkeypatch):
    monkeypatch.setattr(searcher, "images", lambda *_, **__: time.sleep(0.3))
    with client(searcher, timeout=0.05) as asking:
        answer = asking.get("/api/search", params={"q": "a dog"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "took too long" in answer.json()["error"]


def test_pictures_indexed_later_are_found_without_a_restart(served_run, tmp_path):
    matchers, pictures, library = LibraryMatchers.load(served_run / "run"), tmp_path / "pictures", tmp_path / "library"
    pictures.mkdir()
    Image.new("RGB", (50, 40), "red").save(pictures / "red.png")
    index_source(matchers, pictures, library)
    with client(Searcher.open(library), refresh=0.05) as growing:
        assert growing.get("/api/stats").json()["stats"]["items"] == 1
        Image.new("RGB", (50, 40), "blue").save(pictures / "blue.jpg")
        index_source(matchers, pictures, library)
        until = time.monotonic() + 20
        while growing.get("/api/stats").json()["stats"]["items"] == 1 and time.monotonic() < until:
            time.sleep(0.05)
        hits = growing.get("/api/search", params={"q": "blue", "all": True}).json()["hits"]
        found = {hit["path"].rsplit("/", 1)[-1]: hit["id"] for hit in hits}
        assert found.keys() == {"red.png", "blue.jpg"}
        (pictures / "blue.jpg").unlink()
        assert growing.get("/api/image", params={"id": found["blue.jpg"]}).status_code == 404
        assert growing.get("/api/thumbnail", params={"id": found["blue.jpg"]}).status_code == 200


def test_sizes_and_places_are_columns_but_nothing_to_choose_from(served_run, tmp_path):
    for number, (side, turn) in enumerate([(40, 20), (50, 30)] * 6):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, turn), (20 * number, 9, 9)).save(
            tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        )
    index_source(LibraryMatchers.load(served_run / "run"), tmp_path / "photos", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert set(overview(library).facets) == {"folder"}
    assert {"width", "height", "bytes", "latitude", "longitude"} <= set(library.kinds)
