"""The JSON that other programs read."""

from __future__ import annotations

import io
import re

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.search.query.searcher import Searcher
from calligram.serve import item_lists
from calligram.serve.server import create_app
from calligram.serve.settings import ServerSettings


@pytest.fixture(scope="module")
def first(served) -> dict:
    """The best hit for some words."""
    return served.hits(q="a dog on the beach", all=True, k=5)[0]


def png(size: tuple[int, int] = (40, 30), colour: str = "green") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def test_a_text_finds_pictures_in_order_with_times(served):
    answer = served.client.get("/api/search", params={"q": "a dog on the beach", "k": 7, "all": True})
    hits = answer.json()["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5, 6, 7]
    assert {"id", "score", "rank", "path"} <= set(hits[0])
    stages = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    assert {"encode", "search", "rerank"} <= set(stages)
    assert float(stages["encode"]) > 0
    assert answer.json()["milliseconds"].keys() == stages.keys()


def test_an_approximate_answer_says_so_with_its_recall_and_an_exact_one_does_not(served, approximate_served):
    def recall(server, **terms):
        return server.client.get("/api/search", params={"q": "a boat", **terms}).json()["recall"]

    assert 0.9 < recall(approximate_served) <= 1
    assert recall(approximate_served, exact=True) is None
    assert recall(served) is None


def test_a_second_stage_reports_its_depth_and_accepts_a_budget(served, attending, attending_folder):
    def asked(client, **more):
        answer = client.get("/api/search", params={"q": "a dog", "k": 5, "all": True, "hybrid": False, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert asked(attending.client, depth=7)["depth"] == 7
    assert asked(attending.client)["depth"] == 60  # all there are, which is less than a hundred
    assert asked(attending.client, budget_ms=10_000)["depth"] == 60
    found = asked(attending.client, budget_ms=0.001)
    assert (found["depth"], len(found["hits"])) == (5, 5)
    assert found["took"] >= sum(found["milliseconds"].values())
    assert asked(served.client, budget_ms=100)["depth"] == 0  # there is no second stage
    refused = attending.client.get("/api/search", params={"q": "a dog", "depth": 5, "budget_ms": 100})
    assert refused.status_code == 400
    assert "not both" in refused.json()["error"]
    assert attending.client.get("/api/search", params={"q": "a dog", "budget_ms": 0}).status_code == 422
    quick = create_app(Searcher.open(attending_folder), ServerSettings(budget_ms=0.001))
    with TestClient(quick, base_url="http://localhost") as client:
        assert asked(client)["depth"] == 5
        assert asked(client, depth=9)["depth"] == 9


def test_a_picture_of_the_library_finds_itself(served, first):
    picture = served.client.get("/api/image", params={"id": first["id"]}).content
    answer = served.client.post("/api/search", files={"image": ("a.png", picture)}, data={"k": 3, "all": "true"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["hits"][0]["id"] == first["id"]


def test_an_item_finds_similar_items(served, first):
    found = [hit["id"] for hit in served.hits(like=first["id"], k=5, all=True)]
    assert found
    assert first["id"] not in found or len(found) > 1


def test_a_picture_finds_captions_and_so_do_words(served):
    answer = served.client.post("/api/search", files={"image": png()}, data={"find": "captions", "k": 4, "all": "true"})
    texts = [hit["text"] for hit in answer.json()["hits"]]
    assert len(texts) == 4
    assert all(isinstance(text, str) and text for text in texts)
    assert all(hit["text"] for hit in served.hits(q="a dog", find="captions", k=3, all=True))


def test_terms_are_added_and_subtracted(served):
    plain = served.hits(q="a dog", k=60, all=True, hybrid=False)
    less = served.hits(q="a dog", minus=["2:a person", "the sea"], k=60, all=True, hybrid=False)
    more = served.hits(plus=["a dog"], k=60, all=True, hybrid=False)
    assert [hit["id"] for hit in plain] == [hit["id"] for hit in more]
    assert [hit["id"] for hit in plain] != [hit["id"] for hit in less]


def test_conditions_narrow_a_search(served):
    found = served.hits(q="a dog", where="setting = 'beach' and split != 'dev'", k=60, all=True)
    assert found
    for hit in found[:5]:
        about = served.client.get("/api/item", params={"id": hit["id"]}).json()["metadata"]
        assert about["setting"] == "beach"
        assert about["split"] != "dev"


def test_the_library_can_be_browsed_without_a_query(served):
    some = served.client.get("/api/browse", params={"k": 10}).json()["hits"]
    assert len({hit["id"] for hit in some}) == 10
    night = served.client.get("/api/browse", params={"where": "time = 'night'", "k": 100}).json()["hits"]
    counts = {entry["value"]: entry["count"] for entry in served.client.get("/api/stats").json()["facets"]["time"]}
    assert len(night) == counts["night"]


def test_leave_outs_alone_give_the_pictures_that_are_least_like_them(served):
    most = [hit["id"] for hit in served.hits(q="a dog", k=60, all=True, hybrid=False)]
    assert [hit["id"] for hit in served.hits(minus=["a dog"], k=60)] == most[::-1]
    assert len(served.hits(minus=["a dog"], find="captions", k=5)) == 5


def test_all_pictures_can_be_listed_in_pages_and_by_date(served, copies_served):
    def ids(server, **terms):
        answer = server.client.get("/api/browse", params=terms).json()
        return [hit["id"] for hit in answer["hits"]], answer["total"]

    pages = [ids(served, k=25, start=start) for start in (0, 25, 50, 75)]
    assert [len(page) for page, _ in pages] == [25, 25, 10, 0]
    assert {total for _, total in pages} == {60}
    assert len({id for page, _ in pages for id in page}) == 60
    assert ids(served, k=96)[0][:25] == pages[0][0]
    night, total = ids(served, where="time = 'night'", k=3)
    assert len(night) == 3
    assert ids(served, where="time = 'night'", k=500) == (ids(served, where="time = 'night'", k=total)[0], total)
    newest, _ = ids(copies_served, order="newest", k=8)
    oldest, _ = ids(copies_served, order="oldest", k=8)
    dates = {
        tile["id"]: tile["taken"]
        for tile in copies_served.client.get("/api/tiles", params={"id": newest}).json()["tiles"]
    }
    assert [dates[id] for id in newest[:7]] == sorted((dates[id] for id in newest[:7]), reverse=True)
    assert [dates[id] for id in oldest[:7]] == sorted(dates[id] for id in oldest[:7])
    assert dates[newest[7]] is None
    assert dates[oldest[7]] is None  # pictures without a date come last


def test_large_libraries_are_listed_by_vectors_and_not_counted(served, monkeypatch):
    monkeypatch.setattr(item_lists, "MAX_LISTED_ITEMS", 10)
    night = served.client.get("/api/browse", params={"where": "time = 'night'", "k": 3}).json()
    assert (len(night["hits"]), night["total"]) == (3, None)
    every = served.client.get("/api/browse", params={"where": "time = 'night'", "k": 500}).json()
    assert every["total"] == len(every["hits"])
    refused = served.client.get("/api/browse", params={"order": "newest"})
    assert (refused.status_code, "not sorted by date" in refused.json()["error"]) == (400, True)


def test_a_query_is_completed_by_words_and_captions(served, copies_served):
    def texts(server, typed):
        return server.client.get("/api/complete", params={"q": typed}).json()["texts"]

    assert "a dog" in texts(served, "a do")
    assert "beach -dog" in texts(served, "beach -do")
    caption = served.client.get("/api/stats").json()["examples"][0]
    assert caption in texts(served, caption[:12])
    assert texts(served, "qqq") == []
    assert texts(served, "") == []
    assert "dog" in texts(copies_served, "do")  # without captions, by words that the matcher knows


def test_words_that_the_matcher_does_not_know_are_named(served):
    answer = served.client.get("/api/search", params={"q": "a zyzzyva on the beach"}).json()
    assert answer["unknown"] == ["zyzzyva"]


def test_results_that_are_not_a_good_match_are_left_out_and_counted(served):
    kept = served.client.get("/api/search", params={"q": "quantum tax law", "k": 20, "hybrid": False}).json()
    everything = served.hits(q="quantum tax law", k=20, all=True, hybrid=False)
    assert len(kept["hits"]) + kept["below"] >= len(everything)
    assert len(everything) == 20


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/api/search", 400, "the query is empty"),
        ("/api/search?q=%20%20", 400, "the query is empty"),
        ("/api/search?q=dog&plus=", 400, "empty"),
        ("/api/search?q=dog&k=0", 422, "k: input should be greater than or equal to 1"),
        ("/api/search?q=dog&k=100000", 422, "k: input should be less than or equal to 500"),
        ("/api/search?q=dog&kk=3", 422, "kk: extra inputs are not permitted"),
        ("/api/search?q=" + "x" * 1001, 422, "q: string should have at most 1000 characters"),
        ("/api/search?q=dog&find=sounds", 422, "find"),
        ("/api/search?q=dog&where=yaer%20%3E%203", 400, "unknown column 'yaer'"),
        ("/api/search?q=dog&where=" + "(" * 3000, 400, ""),
        ("/api/search?like=nothing", 400, "'nothing'"),
        ("/api/item?id=nothing", 404, "no item 'nothing'"),
        ("/api/item", 422, "id: field required"),
        ("/api/nothing", 404, "Not Found"),
        ("/nothing.html", 404, "Not Found"),
    ],
)
def test_a_bad_request_gets_a_reason(served, path, status, reason):
    answer = served.client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert reason in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_pictures_in_shards_have_the_names_of_their_collection(served):
    hits = served.hits(q="a dog", all=True)
    assert {hit["path"] for hit in hits} == {None}
    names = [served.client.get("/api/item", params={"id": hit["id"]}).json()["name"] for hit in hits]
    assert [hit["name"] for hit in hits] == names
    assert names[0].startswith("scene-")
