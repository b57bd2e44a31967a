"""Routes about the whole library: clusters and duplicates."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from calligram.errors import UserError
from calligram.serve.service import BackgroundWork


def ready(client, path: str) -> dict:
    end = time.monotonic() + 30
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


# Work in the background.


def wait_until_idle(work: BackgroundWork) -> None:
    work._thread.join(10)
    assert not work._thread.is_alive()


def test_background_work_runs_once_for_each_version():
    release, done = threading.Event(), []

    def slow(searcher, track):
        for _ in track(range(2), "counting", 2):
            release.wait(10)
        done.append(searcher.library)
        return f"result {len(done)}"

    work, first, second = BackgroundWork(slow, "slow"), SimpleNamespace(library="1"), SimpleNamespace(library="2")
    assert work.answer(first).state == "working"
    time.sleep(0.05)
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
