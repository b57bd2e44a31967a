"""Routes of single images."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image


@pytest.fixture(scope="module")
def first(served) -> dict:
    """The best hit for some words."""
    return served.hits(q="a dog on the beach", all=True, k=5)[0]


def test_an_item_has_captions_and_metadata(served, first):
    item = served.client.get("/api/item", params={"id": first["id"]}).json()
    assert item["id"] == first["id"]
    assert (item["width"], item["height"]) == (64, 64)
    assert len(item["captions"]) == 5
    assert {"setting", "time", "split"} <= set(item["metadata"])


def test_thumbnails_are_cacheable_jpegs(served, first):
    answer = served.client.get("/api/thumbnail", params={"id": first["id"]})
    assert answer.headers["content-type"] == "image/jpeg"
    assert "max-age" in answer.headers["cache-control"]
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.format == "JPEG"
    again = served.client.get(
        "/api/thumbnail", params={"id": first["id"]}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


def test_pictures_are_sent_unchanged_and_sandboxed(served, first):
    answer = served.client.get("/api/image", params={"id": first["id"]})
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["content-disposition"].startswith("inline")
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.size == (64, 64)
    saved = served.client.get("/api/image", params={"id": first["id"], "download": True})
    assert re.fullmatch(r"attachment; filename\*=UTF-8''scene-\d+\.png", saved.headers["content-disposition"])
