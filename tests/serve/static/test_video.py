"""A frame of a video: the route of its video, and the page, which opens the video at the time of the frame."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers


@pytest.fixture(scope="module")
def filmed(served_run, tmp_path_factory, serving):
    """The address of a server of three frames of a video, and the video."""
    folder = tmp_path_factory.mktemp("filmed")
    (folder / "media").mkdir()
    file = folder / "media" / "clip.webm"
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*"VP80"), 10, (64, 48))
    for number in range(120):
        writer.write(np.full((48, 64, 3), (2 * number, 255 - 2 * number, 90), np.uint8))
    writer.release()
    index_source(LibraryMatchers.load(served_run / "run"), folder / "media", folder / "library")
    with serving(folder / "library") as url:
        yield url, file


def frame(client) -> dict:
    hits = client.get("/api/browse", params={"where": "time = 5"}).json()["hits"]
    return client.get("/api/item", params={"id": hits[0]["id"]}).json()


def test_a_video_is_sent_whole_and_in_parts(filmed, client, served, item):
    url, file = filmed
    with client(url) as user:
        found = frame(user)
        assert found["time"] == 5.0
        whole = user.get("/api/video", params={"id": found["id"]})
        assert whole.content == file.read_bytes()
        assert whole.headers["content-type"] == "video/webm"
        assert "sandbox" in whole.headers["content-security-policy"]
        part = user.get("/api/video", params={"id": found["id"]}, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, whole.content[10:20])
        assert (
            user.get("/api/video", params={"id": found["id"]}, headers={"Range": "bytes=99999999-"}).status_code == 416
        )
        picture = user.get("/api/image", params={"id": found["id"], "download": True})
        assert picture.headers["content-type"] == "image/jpeg"
        assert picture.headers["content-disposition"].endswith("00h00m05s0.jpg")
        assert user.get("/api/video", params={"id": "unknown"}).status_code == 404
        elsewhere = user.get("/api/video", params={"id": found["id"]}, headers={"X-Forwarded-For": "203.0.113.9"})
        assert elsewhere.status_code == 403
        assert "--show-places" in elsewhere.json()["error"]
    assert served.client.get("/api/video", params={"id": item}).status_code == 404
    assert served.client.get("/api/item", params={"id": item}).json()["time"] is None


def test_the_page_opens_the_video_at_the_time_of_the_frame(filmed, client, browser, until):
    url, _ = filmed
    with client(url) as user:
        id = frame(user)["id"]
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(f"{url}/?item={id}")
    page.wait_for_selector("#detail video")
    until(page, "document.querySelector('#detail video').readyState >= 2")
    until(page, "Math.abs(document.querySelector('#detail video').currentTime - 5) < 0.2")
    assert 11 < page.evaluate("document.querySelector('#detail video').duration") < 13
    assert problems == []
    page.close()
