"""Searches that arrive together, and results that are remembered."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.data.collection import Collection
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.encoded_query import ImageSearch
from calligram.search.query.query import ItemId, Query, QueryTerm
from calligram.search.query.searcher import Hit, Results, Searcher
from calligram.serve.batches import RememberedResults, answer_each
from calligram.serve.server import LibraryServer, create_app
from calligram.serve.settings import Address, ServerSettings

CLIENTS = 64


class WatchedSearcher(Searcher):
    """A searcher that notes the sizes of its batches."""

    def image_batch(self, searches):
        vars(self).setdefault("sizes", []).append(len(searches))
        return super().image_batch(searches)


@contextmanager
def serving(searcher: Searcher, **settings: object) -> Iterator[str]:
    address = Address("127.0.0.1", 0)
    with LibraryServer(searcher, address.listen(), address, ServerSettings(**settings)) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server.address.url
        finally:
            server.stop()
            thread.join(60)


def requests_of(folder, items: list[str]) -> list[dict[str, object]]:
    """Three different requests of each client: words, terms, items, conditions, and all kinds of keyword search."""
    texts = list(dict.fromkeys(Collection.open(folder).sentences("all").texts.strings))
    wanted: list[dict[str, object]] = []
    for number in range(3 * CLIENTS):
        text = texts[number % len(texts)]
        kinds: list[dict[str, object]] = [
            {"q": text},
            {"q": text, "minus": ["2:a person"], "k": 5},
            {"q": text, "where": "setting = 'beach'", "hybrid": True},
            {"like": items[number % len(items)], "hybrid": False},
            {"q": text.split()[-1], "plus": [text], "all": False},
        ]
        wanted.append({"k": 12, "all": True, **kinds[number % len(kinds)]})
    return wanted


def test_sixty_four_clients_get_the_answers_of_single_searches(served_run, library_folder):
    searcher = WatchedSearcher.open(library_folder)
    asked = requests_of(served_run / "scenes", searcher.library.sample(60))
    with serving(searcher, remembered_hits=0, workers=2) as url:  # with many threads, fewer searches wait
        together = threading.Barrier(CLIENTS, timeout=120)

        def ask(number: int) -> list[tuple[int, object]]:
            with httpx.Client(base_url=url, timeout=120, trust_env=False, verify=False) as client:
                client.get("/api/health")
                together.wait()
                own = asked[number::CLIENTS]
                answers = [client.get("/api/search", params=request) for request in own]
                # One in three clients also sends a request that is refused, in the same batches.
                if number % 3 == 0:
                    refused = client.get("/api/search", params={"q": "a dog", "where": "yaer = 3"})
                    assert refused.status_code == 400
                    assert "unknown column 'yaer'" in refused.json()["error"]
            assert {answer.status_code for answer in answers} == {200}
            return [(number + CLIENTS * turn, answer.json()) for turn, answer in enumerate(answers)]

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = dict(pair for pairs in pool.map(ask, range(CLIENTS)) for pair in pairs)
        sizes = list(searcher.sizes)
        with httpx.Client(base_url=url, timeout=120, trust_env=False, verify=False) as client:
            for number, request in enumerate(asked):
                single = client.get("/api/search", params=request).json()
                assert [hit["id"] for hit in answers[number]["hits"]] == [hit["id"] for hit in single["hits"]]
                scores = [hit["score"] for hit in single["hits"]]
                assert [hit["score"] for hit in answers[number]["hits"]] == pytest.approx(scores, abs=1e-5)
                assert answers[number]["below"] == single["below"]
    assert max(sizes) > 4
    assert len(sizes) < len(asked)
    assert set(searcher.sizes[len(sizes) :]) == {1}


def test_a_search_that_breaks_its_batch_fails_alone(library_folder):
    class Fragile(Searcher):
        def image_batch(self, searches):
            if any(term.content == "poison" for search in searches for term in search.query.terms):
                raise RuntimeError("broken")
            return super().image_batch(searches)

    searcher = Fragile.open(library_folder)
    searches = [ImageSearch(Query.of(text), all=True) for text in ("a dog", "poison", "a boat")]
    first, second, third = answer_each(searcher, searches)
    assert isinstance(second, RuntimeError)
    assert [hit.id for hit in first.hits] == [hit.id for hit in searcher.images("a dog", all=True).hits]
    assert [hit.id for hit in third.hits] == [hit.id for hit in searcher.images("a boat", all=True).hits]


def test_a_second_stage_takes_searches_one_by_one(attending_folder):
    searcher = WatchedSearcher.open(attending_folder)
    with serving(searcher, remembered_hits=0) as url, ThreadPoolExecutor(16) as pool:

        def ask(number: int) -> int:
            return httpx.get(
                f"{url}/api/search", params={"q": f"dog {number}"}, timeout=120, trust_env=False
            ).status_code

        assert set(pool.map(ask, range(32))) == {200}
    assert set(searcher.sizes) == {1}


def remembered(client: httpx.Client) -> int:
    return int(re.search(r"^calligram_searches_remembered_total (\d+)", client.get("/metrics").text, re.M)[1])


def test_equal_requests_are_answered_from_memory_and_others_are_not(served):
    def hits(**terms: object) -> list[dict[str, object]]:
        return served.hits(k=9, all=True, **terms)

    before, request = remembered(served.client), {"q": "a request that nobody else sends"}
    first = hits(**request)
    assert remembered(served.client) == before
    assert hits(**request) == first
    assert remembered(served.client) == before + 1
    hits(**request, hybrid=False)
    hits(**request, where="setting = 'beach'")
    hits(**request, find="captions")
    item = first[0]["id"]
    assert hits(q=item) != hits(like=item)  # an item is not the text of its id
    assert remembered(served.client) == before + 1
    assert hits(**request, find="captions") != first
    assert remembered(served.client) == before + 2


def test_what_is_remembered_is_not_given_without_the_token(captioning, stranger):
    assert captioning.hits(q="a secret dog", all=True) == captioning.hits(q="a secret dog", all=True)
    assert stranger.get("/api/search", params={"q": "a secret dog", "all": True}).status_code == 401


def test_results_with_a_time_budget_are_not_remembered(attending):
    before = remembered(attending.client)
    for _ in range(2):
        attending.hits(q="a dog", budget_ms=500)
    assert remembered(attending.client) == before


def test_a_new_version_of_the_library_gives_new_results(served_run, tmp_path):
    matchers, pictures, library = LibraryMatchers.load(served_run / "run"), tmp_path / "pictures", tmp_path / "library"
    pictures.mkdir()
    Image.new("RGB", (50, 40), "red").save(pictures / "red.png")
    index_source(matchers, pictures, library)
    app = create_app(Searcher.open(library), ServerSettings(refresh_seconds=0.05))
    with TestClient(app, base_url="http://localhost") as client:

        def count() -> int:
            return len(client.get("/api/search", params={"q": "blue", "all": True}).json()["hits"])

        assert [count(), count()] == [1, 1]
        Image.new("RGB", (50, 40), "blue").save(pictures / "blue.jpg")
        index_source(matchers, pictures, library)
        until = time.monotonic() + 60
        while count() == 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert count() == 2


def results(count: int) -> Results:
    return Results(tuple(Hit(str(number), 0.5, number + 1) for number in range(count)))


def test_the_number_of_remembered_hits_is_limited_and_the_least_used_are_forgotten():
    memory, version = RememberedResults(10), SimpleNamespace()
    for name, count in (("a", 4), ("b", 4), ("none", 0)):
        memory.store(version, version, name, results(count))
    assert memory.find(version, "a") is not None
    memory.store(version, version, "c", results(3))  # 12 hits: b is the one that was not used for longest
    assert memory.find(version, "b") is None
    assert [len(memory.find(version, name).hits) for name in ("a", "none", "c")] == [4, 0, 3]
    memory.store(version, version, "a", results(5))
    assert len(memory.find(version, "a").hits) == 5
    memory.store(version, version, "large", results(11))
    assert memory.find(version, "large") is None


def test_results_of_another_version_are_neither_stored_nor_found():
    memory, old, new = RememberedResults(10), SimpleNamespace(), SimpleNamespace()
    memory.store(old, old, "a", results(1))
    assert memory.find(new, "a") is None
    memory.store(new, old, "a", results(2))  # a search that started before the change
    assert memory.find(new, "a") is None
    memory.store(new, new, "a", results(3))
    assert len(memory.find(new, "a").hits) == 3
    assert memory.find(old, "a") is None


@pytest.mark.parametrize("which", ["library_folder", "attending_folder"])
def test_a_batch_gives_the_answers_of_single_searches(which, request):
    searcher = Searcher.open(request.getfixturevalue(which))
    items = searcher.library.sample(4)
    picture = Image.new("RGB", (40, 30), "green")
    searches = [
        ImageSearch(Query.of("a dog on the beach"), 7, all=True),
        ImageSearch(Query.of("x"), 3),
        ImageSearch(Query.of("a dog on the beach"), 150, "setting = 'beach'", all=True, hybrid=True),
        ImageSearch(Query((QueryTerm("a boat"), QueryTerm("a person", -0.5), QueryTerm(picture))), 9, all=True),
        ImageSearch(Query((QueryTerm(ItemId(items[0])), QueryTerm(ItemId(items[1]), -1.0))), 5),
        ImageSearch(Query.of(picture), 5, all=True, hybrid=False),
        ImageSearch(Query.of("two birds fly over a house at night while a man watches"), 20, all=True, depth=30),
    ]
    for search, found in zip(searches, searcher.image_batch(searches), strict=True):
        single = searcher.images(*search[:1], search.k, **dict(zip(search._fields[2:], search[2:], strict=True)))
        assert [hit._replace(score=0) for hit in found.hits] == [hit._replace(score=0) for hit in single.hits]
        assert [hit.score for hit in found.hits] == pytest.approx([hit.score for hit in single.hits], abs=1e-5)
        assert (found.below_cutoff, found.depth, found.unknown_words) == (
            single.below_cutoff, single.depth, single.unknown_words,
        )  # fmt: skip
