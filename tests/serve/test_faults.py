"""Faults of our own, which must not show."""

from __future__ import annotations

import logging

import pytest
from fastapi.testclient import TestClient

from calligram.search.query.searcher import Searcher
from calligram.serve.server import create_app
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
    from calligram.errors import UserError

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
    import time

    monkeypatch.setattr(searcher, "images", lambda *_, **__: time.sleep(0.3))
    with client(searcher, timeout=0.05) as asking:
        answer = asking.get("/api/search", params={"q": "a dog"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "took too long" in answer.json()["error"]
