"""Captions written through the server: into the collection, by those who may, once."""

from __future__ import annotations

import io
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.data.add_captions import NewCaption, add_new_captions, caption_revisions
from calligram.data.collection import Collection
from calligram.search.query.searcher import Searcher
from calligram.serve.server import create_app
from calligram.serve.settings import ServerSettings

FIRST = {f"scene {row}" for row in range(4)}
"""the images that came with captions"""


def proposed(client) -> dict:
    """The suggestions, once they are there."""
    until = time.monotonic() + 120
    while True:
        answer = client.get("/api/suggestions")
        assert answer.status_code == 200, answer.text
        if answer.json()["state"] != "working":
            return answer.json()
        assert time.monotonic() < until
        time.sleep(0.05)


def written(folder) -> list[tuple[str, str]]:
    return [(c.image, c.text) for addition in caption_revisions(Collection.open(folder)) for c in addition.captions]


def test_images_are_suggested_until_they_have_a_caption(captioning, few_captions):
    found, before = proposed(captioning.client), written(few_captions)
    assert found["state"] == "ready"
    assert found["captioned"] + found["left"] == 30
    ids = [s["id"] for s in found["suggestions"]]
    assert ids
    assert not set(ids) & FIRST
    assert "stands for" in found["suggestions"][0]["why"]
    picture = captioning.client.get("/api/suggested-image", params={"id": ids[0]})
    assert picture.headers["content-type"] == "image/jpeg"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert Image.open(io.BytesIO(picture.content)).size == (64, 64)
    answer = captioning.client.post("/api/captions", json={"id": ids[0], "text": " a dog\n on a beach "})
    assert (answer.status_code, answer.json()) == (200, {"added": True})
    assert written(few_captions) == [*before, (ids[0], "a dog on a beach")]
    again = captioning.client.post("/api/captions", json={"id": ids[0], "text": "a dog on a beach"})
    assert again.json() == {"added": False}
    after = proposed(captioning.client)
    assert [s["id"] for s in after["suggestions"]] == ids[1:]
    assert (after["captioned"], after["left"]) == (found["captioned"] + 1, found["left"] - 1)
    assert captioning.client.post("/api/suggestions").json()["state"] == "working"
    next_round = proposed(captioning.client)
    assert next_round["captioned"] == after["captioned"]
    assert ids[0] not in [s["id"] for s in next_round["suggestions"]]
    assert captioning.client.get("/api/stats").json()["captioning"] is True


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"id": "scene 9", "text": " \n\t"}, 400, "the caption is empty; describe the picture"),
        ({"id": "scene 9", "text": "x" * 1001}, 400, "has 1001 characters; at most 1000"),
        ({"id": "scene 9", "text": "x" * 20_000}, 422, "at most 10000 characters"),
        ({"id": "nobody", "text": "a dog"}, 404, "no image 'nobody'"),
        ({"id": "../collection.json", "text": "a dog"}, 404, "no image"),
        ({"text": "a dog"}, 422, "id: field required"),
        ({"id": "scene 9", "text": "a dog", "image": "x"}, 422, "extra inputs"),
    ],
)
def test_invalid_captions_are_refused_with_a_reason(captioning, few_captions, body, status, message):
    before = written(few_captions)
    answer = captioning.client.post("/api/captions", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert written(few_captions) == before


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}],
)
def test_other_sites_cannot_write_captions(captioning, few_captions, headers):
    before = written(few_captions)
    for path, body in (("/api/captions", {"id": "scene 9", "text": "a dog"}), ("/api/suggestions", None)):
        assert captioning.client.post(path, json=body, headers=headers).status_code in (403, 421)
    plain = {"Content-Type": "text/plain", **headers}  # what a form of another site could send
    assert captioning.client.post("/api/captions", content='{"id": "scene 9"}', headers=plain).status_code in (403, 421)
    assert written(few_captions) == before


def test_captions_need_the_token_or_the_cookie_of_the_page(guarded, stranger, token, few_captions):
    before = written(few_captions)
    client, body = stranger, {"id": "scene 9", "text": "with a token"}
    assert client.get("/caption.html").status_code == 200
    for refused in (
        client.get("/api/suggestions"),
        client.get("/api/suggested-image", params={"id": "scene 9"}),
        client.post("/api/suggestions"),
        client.post("/api/captions", json=body),
        client.post("/api/captions", json=body, headers={"Authorization": "Bearer wrong wrong"}),
    ):
        assert refused.status_code == 401
    assert written(few_captions) == before
    assert client.post("/api/login", json={"token": token}).status_code == 204
    crossing = client.post("/api/captions", json=body, headers={"Origin": "http://evil.example"})
    assert crossing.status_code == 403  # a cookie alone does not make it ours
    assert client.post("/api/captions", json=body, headers={"Origin": guarded}).status_code == 200
    assert written(few_captions) == [*before, ("scene 9", "with a token")]


def test_concurrent_captions_are_all_stored(captioning, few_captions):
    before = written(few_captions)

    def one(number: int) -> int:
        body = {"id": f"scene {4 + number % 3}", "text": f"caption {number}"}
        return captioning.client.post("/api/captions", json=body).status_code

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(one, range(24))) == {200}
    after = written(few_captions)
    assert after[: len(before)] == before
    assert sorted(text for _, text in after[len(before) :]) == sorted(f"caption {n}" for n in range(24))


def test_captions_of_other_programs_are_noticed(captioning, few_captions):
    first = proposed(captioning.client)["suggestions"][0]["id"]
    add_new_captions(few_captions, [NewCaption(first, "from elsewhere")])
    assert first not in [s["id"] for s in proposed(captioning.client)["suggestions"]]


def test_without_a_collection_captions_are_refused(served):
    for answer in (
        served.client.get("/api/suggestions"),
        served.client.post("/api/suggestions"),
        served.client.get("/api/suggested-image", params={"id": "x"}),
        served.client.post("/api/captions", json={"id": "x", "text": "a dog"}),
    ):
        assert answer.status_code == 409
        assert "start it with --collection" in answer.json()["error"]
    assert served.client.get("/api/stats").json()["captioning"] is False


def test_missing_tables_of_the_collection_are_an_error_of_the_server(library_folder, few_captions, tmp_path):
    shutil.copytree(few_captions, tmp_path / "collection")
    app = create_app(Searcher.open(library_folder), ServerSettings(collection=tmp_path / "collection"))
    with TestClient(app, base_url="http://localhost") as client:
        assert proposed(client)["state"] == "ready"
        for file in (tmp_path / "collection").glob("*.parquet"):
            file.unlink()
        answer = client.post("/api/captions", json={"id": "scene 9", "text": "a dog"})
        assert (answer.status_code, answer.json()["error"]) == (
            500,
            "the collection of this server cannot be used; see the log of the server",
        )
        assert client.post("/api/captions", json={"id": "scene 9", "text": " "}).status_code == 400
        (tmp_path / "collection" / "collection.json").unlink()
        assert client.get("/api/suggestions").status_code == 500
