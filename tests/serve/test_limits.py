"""What clients on other machines may not do: ask too much, wait too long, know places; and what the log may not say."""

from __future__ import annotations

import io
import logging
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import ExifTags, Image

from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.serve import metrics, server
from calligram.serve.guard import without_place
from calligram.serve.metrics import MAX_COUNTED_CLIENTS, RateLimits, client_of

OTHER = {"X-Forwarded-For": "203.0.113.9"}
"""as a proxy on this machine marks requests of others"""


def scope(host: str, path: str = "/api/search", forwarded: bool = False) -> dict[str, object]:
    return {"client": (host, 1), "path": path, "headers": [(b"x-forwarded-for", b"1.2.3.4")] if forwarded else []}


@pytest.mark.parametrize(
    ("host", "forwarded", "client"),
    [
        ("127.0.0.1", False, ""), ("::1", False, ""), ("127.0.0.1", True, "127.0.0.1"), ("10.0.0.7", False, "10.0.0.7"),
        ("2001:db8::5:6", False, "2001:db8::/64"), ("testclient", False, ""),
    ],
)  # fmt: skip
def test_who_a_client_is(host, forwarded, client):
    assert client_of(scope(host, forwarded=forwarded)) == client


def test_a_client_has_a_burst_and_then_its_rate(monkeypatch):
    now = [0.0]
    # Only in this module: servers that run meanwhile would wait for hours by another clock.
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limits = RateLimits(2.0)
    assert [limits.wait_seconds(scope("10.0.0.1")) for _ in range(21)] == [0] * 20 + [1]
    assert limits.wait_seconds(scope("10.0.0.2")) == 0, "others are not concerned"
    assert limits.wait_seconds(scope("127.0.0.1")) == 0
    assert limits.wait_seconds(scope("10.0.0.1", "/api/thumbnail")) == 0, "cheap routes have no limit"
    assert limits.wait_seconds(scope("10.0.0.1", "/api/export")) == 13
    now[0] = 1.0
    assert [limits.wait_seconds(scope("10.0.0.1")) for _ in range(3)] == [0, 0, 1]
    assert RateLimits(0.0).wait_seconds(scope("10.0.0.1")) == 0
    for number in range(MAX_COUNTED_CLIENTS + 50):
        limits.wait_seconds(scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
    assert len(limits._buckets) == MAX_COUNTED_CLIENTS


def test_too_many_requests_are_answered_with_429(library_folder, serving, client, monkeypatch):
    # No time passes for the limits, however long the requests take: two seconds would allow another one.
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: 0.0, time=time.time))
    with serving(library_folder, requests_per_second=0.5) as url, client(url) as own, client(url, **OTHER) as other:
        statuses = [other.get("/api/search", params={"q": "a dog"}).status_code for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
        refused = other.get("/api/search", params={"q": "a dog"})
        assert 1 <= int(refused.headers["Retry-After"]) <= 2
        assert "too many requests" in refused.json()["error"]
        assert own.get("/api/search", params={"q": "a dog"}).status_code == 200
        assert other.get("/api/health").status_code == 200


@pytest.fixture(scope="module")
def placed(served_run, tmp_path_factory):
    """A library of one photograph with a place, lying on its side."""
    folder = tmp_path_factory.mktemp("placed")
    (folder / "photos").mkdir()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif[ExifTags.IFD.GPSInfo] = {1: "N", 2: (48.0, 51.0, 30.0), 3: "E", 4: (2.0, 21.0, 0.0)}
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photos" / "a.jpg", exif=exif)
    Image.fromarray(pixels).save(folder / "photos" / "b.webp", exif=exif, lossless=True)
    index_source(LibraryMatchers.load(served_run / "run"), folder / "photos", folder / "library")
    return folder


@pytest.mark.parametrize("name", ["a.jpg", "b.webp"])
def test_a_picture_without_its_place_has_the_same_pixels(placed, name):
    data = (placed / "photos" / name).read_bytes()
    cleaned = without_place(data)
    with Image.open(io.BytesIO(data)) as before, Image.open(io.BytesIO(cleaned)) as after:
        assert before.getexif().get_ifd(ExifTags.IFD.GPSInfo)
        assert not after.getexif().get_ifd(ExifTags.IFD.GPSInfo)
        if name == "a.jpg":
            assert after.getexif()[ExifTags.Base.Orientation] == 6
            assert np.array_equal(np.asarray(before), np.asarray(after))


def test_places_are_hidden_from_other_machines(placed, serving, client):
    with serving(placed / "library") as url, client(url) as own, client(url, **OTHER) as other:
        (id, *_) = [hit["id"] for hit in own.get("/api/browse").json()["hits"]]
        assert own.get("/api/item", params={"id": id}).json()["metadata"]["latitude"] == pytest.approx(48.86, abs=0.01)
        metadata = other.get("/api/item", params={"id": id}).json()["metadata"]
        assert not {"latitude", "longitude"} & metadata.keys()
        for seen, at in ((True, own), (False, other)):
            with Image.open(io.BytesIO(at.get("/api/image", params={"id": id}).content)) as image:
                assert bool(image.getexif().get_ifd(ExifTags.IFD.GPSInfo)) == seen
        for path, terms in (("/api/search", {"q": "a dog"}), ("/api/browse", {})):
            asked = {**terms, "where": "Latitude > 48"}
            assert other.get(path, params=asked).status_code == 403
        assert own.get("/api/browse", params={"where": "latitude > 48"}).status_code == 200
    with serving(placed / "library", show_places=True) as url, client(url, **OTHER) as other:
        assert "latitude" in other.get("/api/item", params={"id": id}).json()["metadata"]


def test_paths_of_the_server_cannot_be_guessed_by_conditions(placed, served_run, tmp_path, serving, client):
    root = placed / "photos"
    (tmp_path / "more").mkdir()
    Image.new("RGB", (20, 30), "red").save(tmp_path / "more" / "c.png")
    library = tmp_path / "library"
    for source in (root, tmp_path / "more"):  # of two sources, the column of sources becomes a filter of the page
        index_source(LibraryMatchers.load(served_run / "run"), source, library)
    asked = {"where": f"source ~ '{str(root)[:5]}'"}
    with serving(library) as url, client(url) as own, client(url, **OTHER) as other:
        assert own.get("/api/browse", params=asked).json()["total"] == 3
        assert own.post("/api/searches", json={"name": "Here", **asked}).status_code == 200
        assert [search["name"] for search in own.get("/api/searches").json()["searches"]] == ["Here"]
        assert str(root) in own.get("/api/stats").text
        for path, terms in (("/api/search", {"q": "a dog"}), ("/api/browse", {})):
            refused = other.get(path, params={**terms, **asked})
            assert refused.status_code == 403
            assert "conditions on source" in refused.json()["error"]
        assert other.post("/api/searches", json={"name": "There", **asked}).status_code == 403
        assert other.get("/api/searches").json()["searches"] == []
        assert str(root) not in other.get("/api/stats").text


def test_clients_that_send_or_read_too_slowly_are_cut_off(library_folder, serving, client, monkeypatch):
    monkeypatch.setattr(server, "SLOW_CLIENT_SECONDS", 0.5)
    with serving(library_folder) as url, client(url) as own:
        host, port = url.removeprefix("http://").split(":")
        half = socket.create_connection((host, int(port)))
        half.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        idle = socket.create_connection((host, int(port)))
        for slow in (half, idle):
            slow.settimeout(60)
            assert _is_cut(slow)
            slow.close()
        monkeypatch.undo()  # on a busy machine, a client may need longer than half a second
        assert own.get("/api/search", params={"q": "a dog"}).status_code == 200


def _is_cut(slow: socket.socket) -> bool:
    try:
        return slow.recv(100) == b""
    except ConnectionResetError:
        return True


def test_the_log_has_no_tokens_and_no_queries_unless_asked(library_folder, serving, client, caplog):
    caplog.set_level(logging.INFO, "calligram.serve")
    token = "a secret token"
    for kind, wanted in (("none", []), ("requests", ["/api/search 200"]), ("queries", ["q=a+red+dog"])):
        caplog.clear()
        with serving(library_folder, log=kind, token=token) as url, client(url, Authorization=f"Bearer {token}") as own:
            assert own.get("/api/search", params={"q": "a red dog"}).status_code == 200
        assert all(text in caplog.text for text in wanted)
        assert token not in caplog.text
        assert ("red" in caplog.text) == (kind == "queries")
        assert bool(caplog.text) == (kind != "none")
