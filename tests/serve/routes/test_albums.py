"""Routes of albums: lists, changes, suggestions and downloads, and searches within an album."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from calligram.search.indexing.forget import forget_items
from calligram.search.query.albums import Album, change_album, find_album, read_albums
from calligram.search.query.selection import MAX_NAME_CHARACTERS


@pytest.fixture(scope="module")
def own(library_folder, tmp_path_factory) -> Path:
    """A library of this module's own: albums are written into it."""
    return Path(shutil.copytree(library_folder, tmp_path_factory.mktemp("albums") / "library"))


@pytest.fixture(scope="module")
def user(own, serving, client):
    with serving(own) as url, client(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(user) -> list[str]:
    return [hit["id"] for hit in user.get("/api/browse", params={"k": 20}).json()["hits"]]


def changed(user, **request) -> dict:
    answer = user.post("/api/albums", json=request)
    assert answer.status_code == 200, answer.text
    return {album["name"]: album for album in answer.json()["albums"]}


def names(albums: list[dict]) -> set[str]:
    return {album["name"] for album in albums}


def listed(user, **terms) -> dict:
    answer = user.get("/api/browse", params={"k": 500, **terms})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_albums_are_begun_changed_renamed_and_deleted(user, own, ids):
    first = changed(user, name="Boats", add=ids[:3])["Boats"]
    assert first == {"name": "Boats", "pictures": 3, "rejected": 0, "cover": ids[0]}
    changed(user, name="Boats", add=[ids[5], ids[0]], remove=[ids[1]], reject=[ids[2], ids[6]])
    assert find_album(own, "Boats") == Album("Boats", (ids[0], ids[5]), (ids[2], ids[6]))
    renamed = user.post("/api/album-name", json={"name": "Boats", "new": "Ships"}).json()["albums"]
    assert names(renamed) & {"Boats", "Ships"} == {"Ships"}
    changed(user, name="Boats")
    taken = user.post("/api/album-name", json={"name": "Boats", "new": "Ships"})
    assert (taken.status_code, "already" in taken.json()["error"]) == (409, True)
    left = user.delete("/api/albums", params={"name": "Ships"}).json()["albums"]
    assert names(left) & {"Boats", "Ships"} == {"Boats"}
    assert user.delete("/api/albums", params={"name": "Ships"}).status_code == 404
    assert user.get("/api/albums").json()["albums"] == left


def test_an_album_is_listed_in_its_order_in_pages_and_with_a_condition(user, ids):
    chosen = [ids[4], ids[1], ids[9], ids[0]]
    changed(user, name="Listed", add=chosen)
    found = listed(user, album="Listed")
    assert [hit["id"] for hit in found["hits"]] == chosen
    assert (found["total"], found["missing"]) == (4, 0)
    second = listed(user, album="Listed", start=1, k=2)
    assert ([hit["id"] for hit in second["hits"]], second["total"]) == (chosen[1:3], 4)
    every = {hit["id"] for hit in listed(user, where="time = 'night'")["hits"]}
    assert [hit["id"] for hit in listed(user, album="Listed", where="time = 'night'")["hits"]] == [
        id for id in chosen if id in every
    ]
    assert user.get("/api/browse", params={"album": "No such"}).status_code == 404
    assert user.get("/api/browse", params={"album": "Listed", "where": "no_such = 1"}).status_code == 400


def test_a_search_within_an_album_has_the_scores_and_the_order_of_the_whole_library(user, ids):
    chosen = ids[3:12]
    changed(user, name="Searched", add=chosen)
    for terms in ({"q": "a boat", "hybrid": False}, {"like": ids[0]}, {"q": "a dog", "where": "time = 'night'"}):
        asked = {**terms, "all": True, "k": 60}
        whole = user.get("/api/search", params=asked).json()["hits"]
        found = user.get("/api/search", params={**asked, "album": "Searched"}).json()
        wanted = [hit for hit in whole if hit["id"] in chosen]
        assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in wanted]
        assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit["score"] for hit in wanted], abs=1e-5)
        assert found["recall"] is None
    changed(user, name="Searched", remove=chosen[:8])  # results are not remembered
    left = user.get("/api/search", params={"q": "a boat", "all": True, "album": "Searched"}).json()["hits"]
    assert [hit["id"] for hit in left] == chosen[8:]
    assert user.get("/api/search", params={"q": "a", "album": "Searched", "find": "captions"}).status_code == 400
    assert user.get("/api/search", params={"q": "a", "album": "No such"}).status_code == 404


def test_suggestions_come_from_the_name_and_then_from_the_answers(user, ids):
    changed(user, name="a boat")
    asked = {"name": "a boat", "k": 10}
    first = user.get("/api/album-suggestions", params=asked).json()
    nearest = user.get("/api/search", params={"q": "a boat", "hybrid": False, "all": True, "k": 10}).json()["hits"]
    assert (first["learnt_from"], first["examples"]) == ("name", 0)
    assert [hit["id"] for hit in first["hits"]] == [hit["id"] for hit in nearest]
    good, bad = first["hits"][0]["id"], first["hits"][1]["id"]
    changed(user, name="a boat", add=[good])
    changed(user, name="a boat", reject=[bad])
    second = user.get("/api/album-suggestions", params=asked).json()
    assert (second["learnt_from"], second["examples"], second["rejected"]) == ("both", 1, 1)
    assert not {good, bad} & {hit["id"] for hit in second["hits"]}
    assert [hit["rank"] for hit in second["hits"]] == list(range(1, 11))
    changed(user, name="zyzzyva")
    nothing = user.get("/api/album-suggestions", params={"name": "zyzzyva"}).json()
    assert (nothing["learnt_from"], nothing["hits"]) == ("nothing", [])
    changed(user, name="zyzzyva", add=ids[:1])
    assert user.get("/api/album-suggestions", params={"name": "zyzzyva"}).json()["learnt_from"] == "examples"
    assert user.get("/api/album-suggestions", params={"name": "No such"}).status_code == 404


def test_an_album_is_downloaded(user, ids):
    changed(user, name="Été/2019", add=ids[:2])
    answer = user.get("/api/album-export", params={"name": "Été/2019"})
    assert answer.status_code == 200, answer.text
    assert "%C3%89t%C3%A9%2F2019.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert [row["id"] for row in json.loads(archive.read("selection.json"))["pictures"]] == ids[:2]
    changed(user, name="Empty")
    assert user.get("/api/album-export", params={"name": "Empty"}).status_code == 404


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"name": "x", "add": ["no such item"]}, 400),
        ({"name": "x", "reject": ["no such item"]}, 404),
        ({"name": "x", "remove": ["no such item"]}, 404),
        ({"name": "a\nb"}, 400),
        ({"name": " "}, 400),
        ({"name": ""}, 422),
        ({"name": "x" * (MAX_NAME_CHARACTERS + 1)}, 422),
        ({"name": "x", "add": ["a"] * 501}, 422),
        ({"name": "x", "more": 1}, 422),
        ({}, 422),
    ],
)
def test_changes_that_cannot_be_are_refused_and_write_nothing(user, own, request_, status):
    before = read_albums(own)
    refused = user.post("/api/albums", json=request_)
    assert refused.status_code == status, refused.text
    assert "\n" not in refused.json()["error"]
    assert read_albums(own) == before


def test_a_server_that_is_open_to_everyone_and_another_site_change_nothing(own, serving, client, user, ids):
    changed(user, name="Ours", add=ids[:1])
    before = read_albums(own)
    with serving(own, any_address=True) as url, client(url) as stranger:
        for refused in (
            stranger.post("/api/albums", json={"name": "Theirs", "add": ids[:1]}),
            stranger.post("/api/album-name", json={"name": "Ours", "new": "Theirs"}),
            stranger.delete("/api/albums", params={"name": "Ours"}),
        ):
            assert (refused.status_code, "--token" in refused.json()["error"]) == (403, True)
        assert stranger.get("/api/albums").status_code == 200
    elsewhere = {"Origin": "http://elsewhere.example"}
    assert user.post("/api/albums", json={"name": "Theirs"}, headers=elsewhere).status_code == 403
    assert read_albums(own) == before


def test_pictures_that_left_the_library_are_counted(library_folder, tmp_path, serving, client):
    own = shutil.copytree(library_folder, tmp_path / "library")
    with serving(own) as url, client(url) as opened:
        ids = [hit["id"] for hit in opened.get("/api/browse", params={"k": 4}).json()["hits"]]
    change_album(own, "Some", add=ids, reject=[])
    forget_items(own, ids[1:3])
    with serving(own) as url, client(url) as opened:
        found = listed(opened, album="Some")
        assert [hit["id"] for hit in found["hits"]] == [ids[0], ids[3]]
        assert (found["total"], found["missing"]) == (2, 2)
        hits = opened.get("/api/search", params={"q": "a boat", "all": True, "album": "Some"}).json()["hits"]
        assert {hit["id"] for hit in hits} == {ids[0], ids[3]}
        assert opened.get("/api/album-suggestions", params={"name": "Some"}).json()["examples"] == 2
        assert opened.get("/api/album-export", params={"name": "Some"}).status_code == 200
        changed(opened, name="Some", remove=[ids[1]])
        assert listed(opened, album="Some")["missing"] == 1
    assert find_album(own, "Some").pictures == (ids[0], ids[2], ids[3])
