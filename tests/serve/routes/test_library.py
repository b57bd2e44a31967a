"""Routes about the whole library: clusters, duplicates, saved searches and downloads."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from calligram.errors import UserError
from calligram.search.query.query import Query, QueryTerm
from calligram.search.query.selection import find_search
from calligram.serve.service import BackgroundWork


def ready(client, path: str) -> dict:
    end = time.monotonic() + 90
    while (answer := client.get(path)).json()["state"] == "working":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert answer.status_code == 200
    return answer.json()


def test_clusters_have_names_and_pictures(served):
    found = ready(served.client, "/api/clusters")
    assert found["state"] == "ready"
    assert sum(cluster["size"] for cluster in found["clusters"]) == found["items"] == found["sampled"] == 60
    assert len({cluster["name"] for cluster in found["clusters"]}) == len(found["clusters"]) >= 4
    members = []
    for cluster in found["clusters"]:
        asked = {"key": found["key"], "number": cluster["number"], "k": 60}
        hits = served.client.get("/api/cluster", params=asked).json()["hits"]
        assert [hit["rank"] for hit in hits] == list(range(1, cluster["size"] + 1))
        assert [hit["id"] for hit in hits[:8]] == cluster["examples"]
        assert {picture["id"] for picture in cluster["pictures"]} <= {hit["id"] for hit in hits}
        members += [hit["id"] for hit in hits]
    assert len(set(members)) == 60


def test_pictures_of_unknown_clusters_are_refused(served):
    key = ready(served.client, "/api/clusters")["key"]
    assert served.client.get("/api/cluster", params={"key": "other", "number": 1}).status_code == 409
    missing = served.client.get("/api/cluster", params={"key": key, "number": 400})
    assert missing.status_code == 404
    assert "1 to" in missing.json()["error"]


def test_duplicates_are_grouped(copies_served):
    found = ready(copies_served.client, "/api/duplicates")
    (group,) = found["groups"]
    assert [picture["name"] for picture in group["pictures"]] == ["0.jpg", "0.jpg", "small <b>.jpg"]
    assert [picture["same_bytes"] for picture in group["pictures"]] == [True, True, False]
    assert group["copied_bytes"] == found["copied_bytes"] == sum(p["bytes"] for p in group["pictures"][1:])
    assert copies_served.client.get("/api/duplicates", params={"start": 1}).json()["groups"] == []


# Dates.


def test_pictures_are_counted_by_day(copies_served, served):
    found = copies_served.client.get("/api/timeline").json()
    days = {f"{2019 + row // 3}-0{row + 1}-1{row}": 1 + (row == 0) for row in range(6)}
    assert found == {"days": days, "undated": 1}
    assert list(found["days"]) == sorted(days)
    assert served.client.get("/api/timeline").json() == {"days": {}, "undated": 60}


@pytest.mark.parametrize("route", ["clusters", "timeline", "searches", "duplicates"])
def test_unknown_parameters_are_refused(served, route):
    refused = served.client.get(f"/api/{route}", params={"kk": 3})
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("kk: the route has no such parameter; it has ")


# Saved searches.


def test_searches_are_saved_listed_and_deleted(copies_served, copies):
    client, search = copies_served.client, {"name": "Boats", "q": "a boat", "minus": ["snow"], "where": "year >= 2019"}
    saved = client.post("/api/searches", json=search)
    assert saved.status_code == 200, saved.text
    whole = {**search, "plus": [], "like": [], "all": False}
    assert whole in saved.json()["searches"]
    assert whole in client.get("/api/searches").json()["searches"]
    assert find_search(copies / "library", "Boats").query() == Query((QueryTerm("a boat"), QueryTerm("snow", -1.0)))
    left = client.delete("/api/searches", params={"name": "Boats"}).json()["searches"]
    assert whole not in left
    assert client.delete("/api/searches", params={"name": "Boats"}).status_code == 404


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"q": " "}, 400),
        ({"where": "no_such = 1"}, 400),
        ({"name": "a\nb"}, 400),
        ({"q": 3}, 422),
        ({"more": 1}, 422),
        ({"like": ["no such item"]}, 400),
    ],
)
def test_searches_that_cannot_run_are_not_saved(copies_served, changes, status):
    search = {"name": "wrong", "q": "a boat", **changes}
    assert copies_served.client.post("/api/searches", json=search).status_code == status
    assert "wrong" not in {s["name"] for s in copies_served.client.get("/api/searches").json()["searches"]}


def test_another_site_cannot_save_or_delete(copies_served):
    elsewhere = {"Origin": "http://elsewhere.example"}
    asked = {"name": "theirs", "q": "a boat"}
    assert copies_served.client.post("/api/searches", json=asked, headers=elsewhere).status_code == 403
    assert copies_served.client.delete("/api/searches?name=theirs", headers=elsewhere).status_code == 403


def test_a_server_that_is_open_to_everyone_saves_nothing(library_folder, client, serving):
    with serving(library_folder, any_address=True) as url, client(url) as stranger:
        refused = stranger.post("/api/searches", json={"name": "theirs", "q": "a boat"})
        assert refused.status_code == 403
        assert "--token" in refused.json()["error"]
        assert stranger.get("/api/stats").json()["saving"] is False
    assert not (library_folder / "searches.json").exists()


def test_a_folder_that_cannot_be_written_is_reported(copies, client, serving, monkeypatch):
    def full(folder, search):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calligram.serve.routes.library.save_search", full)
    with serving(copies / "library") as url, client(url) as user:
        refused = user.post("/api/searches", json={"name": "mine", "q": "a boat"})
    assert refused.status_code == 409
    assert "No space left" in refused.json()["error"]


# Downloads.


def test_a_download_has_pictures_and_their_table(copies_served, copies):
    hits = copies_served.hits(q="a boat", all=True, k=3)
    form = {"id": [hit["id"] for hit in hits] + ["unknown"], "score": [hit["score"] for hit in hits] + [0]}
    answer = copies_served.client.get("/api/export", params=form)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        content = json.loads(archive.read("selection.json"))
        for record, hit in zip(content["pictures"], hits, strict=True):
            assert archive.read(record["file"]) == Path(hit["path"]).read_bytes()
            assert record["score"] == pytest.approx(hit["score"])
            assert not {"latitude", "longitude", "path", "source"} & set(record["metadata"])
    assert content["problems"] == [{"id": "unknown", "reason": "the library has no such item"}]


def test_downloads_that_cannot_be_are_refused(copies_served):
    def status(**asked):
        return copies_served.client.get("/api/export", params=asked).status_code

    assert status(id=["unknown"]) == 404
    assert status(id=["a", "b"], score=[1]) == 400
    assert status(id=["a"] * 501) == 422
    assert status() == 422


def test_few_downloads_at_a_time_and_each_ends_with_its_client(copies_served):
    ids = [hit["id"] for hit in copies_served.client.get("/api/browse").json()["hits"]]
    served, end = 0, time.monotonic() + 90
    while served < 6:  # clients that leave while the answer arrives; the server may notice it a moment later
        with copies_served.client.stream("GET", "/api/export", params={"id": ids}) as answer:
            served += answer.status_code == 200
        assert time.monotonic() < end
    while copies_served.client.get("/api/export", params={"id": ids}).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


# Work in the background.


def wait_until_idle(work: BackgroundWork) -> None:
    work._thread.join(60)
    assert not work._thread.is_alive()


def test_background_work_runs_once_for_each_version():
    release, done = threading.Event(), []

    def slow(searcher, track):
        for _ in track(range(2), "counting", 2):
            release.wait(60)
        done.append(searcher.library)
        return f"result {len(done)}"

    work, first, second = BackgroundWork(slow, "slow"), SimpleNamespace(library="1"), SimpleNamespace(library="2")
    assert work.answer(first).state == "working"
    end = time.monotonic() + 60
    while not work.answer(first).message:  # until the thread has begun
        assert time.monotonic() < end
        time.sleep(0.01)
    assert work.answer(first).message == "counting, 0 of 2"
    assert work.answer(second).state == "working"  # one piece of work at a time
    release.set()
    wait_until_idle(work)
    assert (work.answer(first).result, work.answer(first).result) == ("result 1", "result 1")
    assert work.answer(second).result == "result 1"  # until that of the new version is there
    wait_until_idle(work)
    assert work.answer(second).result == "result 2"
    assert done == ["1", "2"]


@pytest.mark.parametrize(
    ("error", "message"), [(UserError("no such thing"), "no such thing"), (ValueError("x"), "log")]
)
def test_background_work_that_fails_says_so(error, message, caplog):
    def fail(searcher, track):
        raise error

    work, searcher = BackgroundWork(fail, "fails"), SimpleNamespace(library="1")
    work.answer(searcher)
    wait_until_idle(work)
    answer = work.answer(searcher)
    assert answer.state == "failed"
    assert message in answer.message
    assert bool(caplog.records) == (not isinstance(error, UserError))
