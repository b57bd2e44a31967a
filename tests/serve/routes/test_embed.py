"""Vectors for other programs, in our JSON and in that of the common embedding APIs."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from calligram.search.library.library import Library
from calligram.search.query.searcher import Searcher

TEXTS = ["a dog on the beach", "two boats at sunset", "a dog"]


def png(colour: str = "green") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(stream, "PNG")
    return stream.getvalue()


def embeddings(client, **body: object) -> dict:
    answer = client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(found: dict) -> np.ndarray:
    return np.array([entry["embedding"] for entry in found["data"]], dtype=np.float32)


def test_the_vector_of_a_text_scores_pictures_as_a_search_does(served, library_folder):
    found = served.client.get("/api/embed", params={"text": TEXTS}).json()
    manifest = Library.open(library_folder).manifest
    assert (found["model"], found["fingerprint"]) == ("run", manifest.matcher.fingerprint)
    assert found["dimension"] == manifest.dim == len(found["texts"][0])
    assert (found["images"], found["truncated"]) == ([], [0, 0, 0])
    assert np.linalg.norm(found["texts"], axis=1) == pytest.approx(1, abs=1e-6)
    stored = Library.open(library_folder).images
    for text, vector in zip(TEXTS, found["texts"], strict=True):
        hits = served.hits(q=text, k=20, all=True, hybrid=False)
        scores = stored.vectors([hit["id"] for hit in hits]) @ np.array(vector, dtype=np.float32)
        assert scores == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_the_vector_of_a_picture_is_that_of_the_library(served, library_folder, item):
    picture = served.client.get("/api/image", params={"id": item}).content
    files = [("image", ("a.png", picture)), ("image", ("b.png", png()))]
    found = served.client.post("/api/embed", files=files, data={"text": ["a dog"]}).json()
    assert len(found["images"]) == 2
    assert np.linalg.norm(found["images"], axis=1) == pytest.approx(1, abs=1e-6)
    stored = Library.open(library_folder).images.vectors([item])[0]
    assert float(stored @ np.array(found["images"][0])) == pytest.approx(1, abs=1e-3)  # float16 in the library
    alone = served.client.get("/api/embed", params={"text": "a dog"}).json()
    assert found["texts"][0] == pytest.approx(alone["texts"][0], abs=1e-6)


def test_words_that_are_not_read_are_counted(served):
    long = "dog " * 500
    found = served.client.get("/api/embed", params={"text": ["a dog", long]}).json()
    assert found["truncated"][0] == 0
    assert found["truncated"][1] > 100


def test_the_common_api_gives_the_same_vectors_as_numbers_and_as_bytes(served):
    own = served.client.get("/api/embed", params={"text": TEXTS}).json()
    found = embeddings(served.client, model="run", input=TEXTS)
    assert (found["object"], found["model"]) == ("list", "run")
    assert [(entry["object"], entry["index"]) for entry in found["data"]] == [("embedding", n) for n in range(3)]
    assert vectors(found) == pytest.approx(np.array(own["texts"]), abs=1e-6)
    coded = embeddings(served.client, input=TEXTS, encoding_format="base64", dimensions=16, user="somebody")
    bytes_of = [base64.b64decode(entry["embedding"]) for entry in coded["data"]]
    assert np.stack([np.frombuffer(b, "<f4") for b in bytes_of]) == pytest.approx(vectors(found), abs=1e-6)


def test_one_text_needs_no_list_and_tokens_are_counted(served, library_folder):
    one, many = embeddings(served.client, input="a dog"), embeddings(served.client, input=["a dog", "a dog"])
    assert vectors(one)[0] == pytest.approx(vectors(many)[1], abs=1e-6)
    read = len(Searcher.open(library_folder).encoder.token_spans("a dog"))
    assert read >= 2
    assert one["usage"] == {"prompt_tokens": read, "total_tokens": read}
    assert many["usage"]["total_tokens"] == 2 * read


def test_the_model_is_listed(served):
    listed = served.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["run"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"input": "a dog", "model": "ada"}, 404, "unknown model 'ada'; this server has 'run'"),
        ({"input": "a dog", "dimensions": 8}, 400, "have 16 dimensions, not 8"),
        ({"input": []}, 422, "input"),
        ({"input": " "}, 422, "input"),
        ({"input": ["a dog", ""]}, 422, "input"),
        ({"input": [1, 2, 3]}, 422, "input: input should be a valid string; input.0: input should be a valid string"),
        ({"input": ["a"] * 257}, 422, "input"),
        ({"input": "a dog", "encoding_format": "int8"}, 422, "encoding_format"),
        ({"input": "a dog", "truncate": True}, 422, "truncate: extra inputs are not permitted"),
    ],
)
def test_a_bad_request_gets_a_reason(served, body, status, reason):
    answer = served.client.post("/v1/embeddings", json=body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_nothing_and_files_that_are_no_pictures_are_refused(served):
    assert "nothing to embed" in served.client.get("/api/embed").json()["error"]
    refused = served.client.post("/api/embed", files=[("image", ("a.png", png())), ("image", ("b.png", b"text"))])
    assert refused.status_code == 415
    assert "not a picture" in refused.json()["error"]
    many = served.client.post("/api/embed", files=[("image", ("a.png", png()))] * 33)
    assert many.status_code == 422


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/embed?text=dog"), ("POST", "/v1/embeddings"), ("GET", "/v1/models")]
)
def test_vectors_are_given_with_the_token_only(captioning, stranger, method, path):
    body = {"json": {"input": "dog"}} if method == "POST" else {}
    assert stranger.request(method, path, **body).status_code == 401
    assert captioning.client.request(method, path, **body).status_code == 200
    foreign = captioning.client.request(method, path, headers={"Origin": "http://evil.example"}, **body)
    assert foreign.status_code == (403 if method == "POST" else 200)
    assert stranger.request(method, path, headers={"Host": "evil.example"}, **body).status_code == 421
