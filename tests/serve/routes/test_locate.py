"""Phrases in pictures over HTTP, by a localizer that was really trained."""

from __future__ import annotations

import io
import shutil
import threading
import time

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calligram.models.catalog import load_matcher
from calligram.search.explain.library_localizer import LibraryLocalizer
from calligram.search.explain.localize import encode_proposals, localize_sentence
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.query.searcher import Searcher
from calligram.serve.server import create_app
from calligram.serve.settings import ServerSettings

SENTENCE = "A little girl in a red hat stands near a brown dog."


def test_the_noun_phrases_of_a_sentence_get_boxes(served, served_run, item):
    """The same as the localizer itself says of the picture as it is served."""
    found = served.located(item, SENTENCE, k=4)
    stored = load_matcher(served_run / "phrases")
    with Image.open(io.BytesIO(served.client.get("/api/image", params={"id": item}).content)) as picture:
        looked = encode_proposals(stored.matcher, stored.inputs, picture.convert("RGB"))
        assert (found["width"], found["height"]) == picture.size
    expected = localize_sentence(stored.matcher, stored.inputs, looked, SENTENCE, 4)
    assert len(expected) >= 2
    assert [(p["start"], p["end"], p["text"]) for p in found["phrases"]] == [(*e.span, e.text) for e in expected]
    for phrase, located in zip(found["phrases"], expected, strict=True):
        assert [tuple(hit["box"]) for hit in phrase["boxes"]] == [hit.box for hit in located.hits]
        assert [hit["score"] for hit in phrase["boxes"]] == pytest.approx([hit.score for hit in located.hits])
        assert [hit["rank"] for hit in phrase["boxes"]] == [1, 2, 3, 4]
    assert found["proposals"] == len(looked.boxes) == 100


def test_a_single_word_is_a_phrase(served, item):
    for text in ("dog", "  dog  "):
        phrase = served.located(item, text)["phrases"]
        assert [(p["text"], len(p["boxes"])) for p in phrase] == [("dog", 3)]


def test_unknown_words_get_no_boxes_and_are_returned(served, item):
    found = served.located(item, "a zebra")
    assert [p["boxes"] for p in found["phrases"]] == [[]]
    assert found["unknown"] == ["zebra"]
    assert [p["boxes"] for p in served.located(item, "!?")["phrases"]] == [[]]


def test_statistics_show_that_there_is_a_localizer(served):
    assert served.client.get("/api/stats").json()["localizer"] is True


@pytest.mark.parametrize(
    ("terms", "status", "reason"),
    [
        ({"text": " "}, 400, "the text is empty"),
        ({}, 422, "text: field required"),
        ({"text": "x" * 1001}, 422, "text: string should have at most 1000 characters"),
        ({"text": "a dog", "k": 0}, 422, "k: input should be greater"),
        ({"text": "a dog", "k": 21}, 422, "k: input should be less"),
        ({"text": "a dog", "id": "nothing"}, 404, "no item 'nothing'"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(served, item, terms, status, reason):
    answer = served.client.get("/api/locate", params={"id": item, **terms})
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_without_a_localizer_the_error_says_how_to_add_one(served_run, tmp_path, caplog):
    """One that is gone leaves a library that can be searched; one that comes is taken up while serving."""
    out, phrases = tmp_path / "library", tmp_path / "phrases"
    index_source(LibraryMatchers.load(served_run / "run"), served_run / "scenes", out)
    searcher = Searcher.open(out)
    asked = {"id": searcher.library.sample(1)[0], "text": "a dog"}
    app = create_app(searcher, ServerSettings(refresh_seconds=0.05))
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.get("/api/locate", params=asked)
        assert answer.status_code == 409
        assert "no localizer" in answer.json()["error"]
        assert "--localizer RUN" in answer.json()["error"]
        assert client.get("/api/stats").json()["localizer"] is False
        shutil.copytree(served_run / "phrases", phrases)
        report = index_source(LibraryMatchers.load(served_run / "run", localizer=phrases), served_run / "scenes", out)
        assert report.counts["unchanged"] == 60
        end = time.monotonic() + 60
        while client.get("/api/locate", params=asked).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert client.get("/api/stats").json()["localizer"] is True
    shutil.rmtree(phrases)
    with TestClient(create_app(Searcher.open(out)), base_url="http://localhost") as client:
        assert "the localizer of" in caplog.text
        assert "cannot be loaded" in client.get("/api/locate", params=asked).json()["error"]
        assert client.get("/api/search", params={"q": "a dog", "all": True}).json()["hits"]


def test_a_missing_picture_file_is_reported(served_run, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(3):
        Image.effect_noise((40, 30), 20 + number).convert("RGB").save(photos / f"{number}.png")
    models = LibraryMatchers.load(served_run / "run", localizer=served_run / "phrases")
    index_source(models, photos, tmp_path / "library")
    searcher = Searcher.open(tmp_path / "library")
    ids = {item.name: item.id for item in searcher.library.items(searcher.library.sample(3))}
    with TestClient(create_app(searcher), base_url="http://localhost") as client:
        asked = {"id": ids["1.png"], "text": "a dog"}
        assert client.get("/api/locate", params=asked).status_code == 200
        (photos / "1.png").unlink()
        gone = client.get("/api/locate", params=asked)
        assert gone.status_code == 404
        assert "cannot be read" in gone.json()["error"]
        (photos / "2.png").write_bytes(b"no picture any more")
        assert client.get("/api/locate", params={"id": ids["2.png"], "text": "a dog"}).status_code == 404


def test_a_picture_is_encoded_once_for_many_requests(library_folder, monkeypatch):
    library = Library.open(library_folder)
    locator, ids = LibraryLocalizer.open(library), library.sample(3)
    looks = []
    really = LibraryLocalizer._propose

    def counted(self, content, id):
        looks.append(id)
        time.sleep(0.1)
        return really(self, content, id)

    monkeypatch.setattr(LibraryLocalizer, "_propose", counted)
    answers: dict[str, list] = {text: [] for text in ("a dog", SENTENCE)}
    threads = [
        threading.Thread(target=lambda text=text, id=id: answers[text].append((id, locator.locate(library, id, text))))
        for text in answers for id in ids for _ in range(3)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert sorted(looks) == sorted(ids)
    for text, found in answers.items():
        assert len(found) == 9
        for id in ids:
            alike = {answer.phrases[0].hits[0] for asked, answer in found if asked == id}
            assert alike == {LibraryLocalizer.open(library).locate(library, id, text).phrases[0].hits[0]}


def test_only_the_last_pictures_are_cached(library_folder, monkeypatch):
    monkeypatch.setattr("calligram.search.explain.library_localizer.CACHED_PICTURES", 2)
    library = Library.open(library_folder)
    locator = LibraryLocalizer.open(library)
    for id in library.sample(4):
        locator.locate(library, id, "a dog")
    assert len(locator._cache) == 2
