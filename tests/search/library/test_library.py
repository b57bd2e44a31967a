"""What a library gives back: items, pictures, words; and which libraries it refuses."""

from __future__ import annotations

import io
import json
import re
import signal
import unicodedata

import numpy as np
import pytest
from PIL import Image

from calligram.checksums import sealed
from calligram.errors import UserError
from calligram.search.filters.columns import counts_by, group_of
from calligram.search.filters.parser import holds, parse
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library import manifest, tables
from calligram.search.library.library import Library
from calligram.search.query.searcher import Searcher
from calligram.text import has_every_word


def test_an_item_has_the_metadata_of_its_file(indexed, photos, by_path):
    library = Library.open(indexed)
    item = library.item(by_path(library)["trip/photo_2.jpg"])
    assert item.path == photos / "trip" / "photo_2.jpg"
    assert (item.name, item.folder, item.width, item.height, item.captions) == ("photo_2.jpg", "trip", 48, 36, ())
    assert item.metadata == {
        **{"path": "trip/photo_2.jpg", "folder": "trip", "name": "photo_2.jpg", "source": str(photos)},
        **{"bytes": item.path.stat().st_size, "width": 48, "height": 36},
        **{"taken": "2012-05-01T12:30:00", "year": 2012, "camera": "Acme Box 2"},
    }
    assert set(item.metadata) <= set(library.kinds)


def test_pictures_and_thumbnails_come_by_id_only(indexed, photos, by_path):
    library = Library.open(indexed)
    id = by_path(library)["photo_0.jpg"]
    assert library.picture(id) == (photos / "photo_0.jpg").read_bytes()
    assert Image.open(io.BytesIO(library.thumbnail(id))).size == (48, 36)
    (photos / "photo_0.jpg").unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        library.picture(id)
    for ask in (library.item, library.picture, library.thumbnail):
        for unknown in ("nothing", "../../etc/passwd", "x' OR '1'='1", ""):
            with pytest.raises(UserError, match="the library has no item"):
                ask(unknown)


def test_items_come_in_the_order_asked_for_as_often_as_asked_for(indexed):
    library = Library.open(indexed)
    ids = library.sample(5)
    assert [item.id for item in library.items([*ids[::-1], ids[2]])] == [*ids[::-1], ids[2]]
    assert [item.id for item in library.known_items(["nothing", ids[0]])] == [ids[0]]


def test_captions_and_metadata_of_many_items_are_those_of_each(indexed):
    library = Library.open(indexed)
    ids = [*library.sample(5)[::-1], library.sample(1)[0]]
    captions, metadata = library.captions_and_metadata(ids)
    items = library.items(ids)
    assert captions == [item.captions for item in items]
    assert all(item.metadata == {**item.metadata, **found} for item, found in zip(items, metadata, strict=True))
    assert any(metadata)


def test_conditions_hold_for_the_columns(indexed):
    library = Library.open(indexed)
    query = np.ones((1, 8), dtype=np.float32)
    for text, count in (("year >= 2014", 4), ("folder = 'trip' and camera is missing", 4), ("bytes > 1", 12)):
        found = library.images.search(query, 20, parse(text, library.kinds))[0]
        assert len(found) == count, text


@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_an_accent_is_the_same_however_it_is_written(models, photograph, tmp_path, asked):
    for number, form in enumerate(("NFC", "NFD")):
        photograph(tmp_path / "photos" / form / unicodedata.normalize(form, "café_Zoë.jpg"), 20 + number)
    index_source(models, tmp_path / "photos", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    name, word, part = (unicodedata.normalize(asked, text) for text in ("café_Zoë.jpg", "Zoë", "fé_"))
    both = set(library.sample(2))
    assert len(both) == 2
    vector = library.images.vectors(sorted(both)[:1])
    for text in (f"name = '{name}'", f"name in ('{name}')", f"name ~ '{part}'", f"path ~ '{part}'"):
        condition = parse(text, library.kinds)
        assert {hit.id for hit in library.images.search(vector, 5, condition)[0]} == both, text
        assert {row["id"] for row in library.rows() if holds(condition, row)} == both
    assert {found.id for found in library.full_text(word, 5)} == both
    assert all(has_every_word(word, (found.words,)) for found in library.full_text(word, 5))
    assert {Image.open(io.BytesIO(library.picture(id))).size for id in both} == {
        (48, 36)
    }  # the file is opened under its own name


def test_vectors_may_be_kept_by_milvus(models, photos, tmp_path, photograph, by_path):
    out, engine = tmp_path / "library", f"milvus:{tmp_path / 'milvus.db'}"
    index_source(models, photos, out, engine=engine)
    library = Library.open(out, index=engine)
    assert library.manifest.index == engine
    ids = by_path(library)
    assert library.images.search(library.images.vectors([ids["photo_0.jpg"]]), 1)[0][0].id == ids["photo_0.jpg"]
    (photos / "photo_0.jpg").unlink()
    photograph(photos / "new.jpg", 30)
    report = index_source(models, photos, out, engine=engine)
    assert (report.counts["gone"], report.counts["added"]) == (1, 1)
    library = Library.open(out, index=engine)
    assert len(library.images) == len(library) == 12
    with pytest.raises(UserError, match="add --rebuild to move them"):
        index_source(models, photos, out, engine="milvus://elsewhere:19530")


def test_a_searcher_over_milvus_finds_what_one_over_files_finds(models, photos, tmp_path, indexed):
    engine = f"milvus:{tmp_path / 'milvus.db'}"
    index_source(models, photos, tmp_path / "elsewhere", engine=engine)
    files, server = Searcher.open(indexed), Searcher.open(tmp_path / "elsewhere", index=engine)

    def hits(searcher: Searcher, *search: object, **options: object) -> dict[str, float]:
        return {str(hit.path): hit.score for hit in searcher.images(*search, all=True, **options).hits}

    for query in ("a red disc", "snow", "photo 3", Image.open(photos / "photo_0.jpg")):
        for where in (None, "year >= 2014", "folder = 'trip' and width < 100"):
            ours, theirs = (hits(searcher, query, 12, where=where) for searcher in (files, server))
            assert ours.keys() == theirs.keys()
            # Files hold half precision, so that the order of nearly equal scores may differ.
            np.testing.assert_allclose([ours[path] for path in theirs], list(theirs.values()), atol=1e-3)
    assert server.images("snow", exact=True).recall is None


def test_a_writer_that_is_killed_before_its_commit_leaves_nothing_in_milvus(
    models, small_run, photos, tmp_path, photograph, preloaded
):
    out, engine = tmp_path / "library", f"milvus:{tmp_path / 'milvus.db'}"
    new = photograph(tmp_path / "new.jpg", 30)
    # One process at a time may open the file of an embedded Milvus, so the other one does everything before the kill.
    script = f"""
import os, shutil, signal
from pathlib import Path
from calligram.search.indexing import run, writer
from calligram.search.library.matchers import LibraryMatchers
models, photos, out = LibraryMatchers.load({str(small_run)!r}), Path({str(photos)!r}), Path({str(out)!r})
run.index_source(models, photos, out, engine={engine!r})
shutil.copy({str(new)!r}, photos / "new.jpg")
(photos / "photo_0.jpg").unlink()
writer.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run.index_source(models, photos, out, engine={engine!r})
"""
    ended = preloaded.run(script)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    journal = out / "1" / "pending.json"
    assert journal.is_file()
    assert len(Library.open(out, index=engine).images) == 13  # the new vector is there, and no item has it
    (photos / "new.jpg").unlink()
    index_source(models, photos, out, engine=engine)
    library = Library.open(out, index=engine)
    assert len(library) == len(library.images) == 11
    assert not journal.exists()


@pytest.mark.parametrize(
    "address",
    ["milvus://token@127.0.0.1:9", "s3://bucket/vectors", "http://127.0.0.1:9", "milvus:/tmp/x.db", "../other"],
)
def test_vectors_elsewhere_are_used_only_at_an_address_that_the_user_names(
    models, photos, indexed, address, monkeypatch
):
    """A library that somebody sent could name any server."""
    monkeypatch.setattr(tables, "open_index", lambda *_, **__: pytest.fail("an index was opened"))
    file = indexed / manifest.MANIFEST
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), "index": address})))
    shown = re.escape(address.replace("token@", ""))
    wanted = rf"are at {shown}, outside its folder; if you trust this address, add --index {shown} "
    for use in (
        lambda: Library.open(indexed),
        lambda: Library.open(indexed, index="milvus://another"),
        lambda: Searcher.open(indexed),
        lambda: index_source(models, photos, indexed),
        lambda: forget_items(indexed, [], gone=True),
    ):
        with pytest.raises(UserError, match=wanted):
            use()


def test_a_rebuild_does_not_reach_out_to_an_address_that_the_user_does_not_name(models, photos, indexed, caplog):
    file = indexed / manifest.MANIFEST
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), "index": "milvus://127.0.0.1:9"})))
    assert index_source(models, photos, indexed, rebuild=True).library["items"] == 12
    assert "the old vectors stay there" in caplog.text
    assert Library.open(indexed).manifest.index is None


@pytest.mark.parametrize("address", ["s3://bucket/x", "http://127.0.0.1:9", "hf://data", "az://c/x"])
def test_an_index_has_no_other_scheme_than_milvus(models, photos, tmp_path, address):
    with pytest.raises(UserError, match="is no address of an index; write milvus://host:19530"):
        index_source(models, photos, tmp_path / "library", engine=address)


def test_a_library_of_another_version_is_refused_or_brought_up_to_date(models, photos, indexed, monkeypatch):
    file = indexed / manifest.MANIFEST
    content = json.loads(file.read_text())
    file.write_text(json.dumps(sealed({**content, "version": manifest.VERSION + 1})))
    with pytest.raises(UserError, match="reads up to 1; upgrade it"):
        Library.open(indexed)
    with pytest.raises(UserError, match="reads up to 1; upgrade it"):
        index_source(models, photos, indexed)
    # As if this were the next version, which calls the sources otherwise.
    renamed = {**{k: v for k, v in content.items() if k != "sources"}, "roots": content["sources"]}
    file.write_text(json.dumps(sealed(renamed)))
    monkeypatch.setattr(manifest, "VERSION", 2)
    with pytest.raises(UserError, match="cannot be brought up to 2"):
        index_source(models, photos, indexed)
    monkeypatch.setattr(manifest, "MIGRATIONS", {1: lambda folder, old: {"sources": old.pop("roots"), **old}})
    with pytest.raises(UserError, match='older than 2; "calligram index" brings it up to date'):
        Library.open(indexed)
    assert index_source(models, photos, indexed).counts["unchanged"] == 12
    assert len(Library.open(indexed)) == 12
    assert json.loads(file.read_text())["version"] == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "calligram-library", "version": 1}', '{"format": "x"}']
)
def test_a_damaged_library_is_refused_with_an_error_and_can_be_rebuilt(models, photos, indexed, text):
    (indexed / manifest.MANIFEST).write_text(text)
    with pytest.raises(UserError, match=r"is damaged|does not describe"):
        Library.open(indexed)
    index_source(models, photos, indexed, rebuild=True)
    assert len(Library.open(indexed)) == 12


def test_a_folder_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(UserError, match='make one with "calligram index RUN SOURCE --out'):
        Library.open(tmp_path)


def test_pictures_are_counted_by_time_and_folder(indexed, photos, by_path, calligram, models):
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, indexed)
    library = Library.open(indexed)
    years = {str(2010 + seed): 1 for seed in range(2, 12, 2)}
    assert counts_by(library, "year") == {**years, None: 6}
    assert counts_by(library, "day") == {**{f"{year}-05-01": 1 for year in years}, None: 6}
    assert counts_by(library, "folder") == {"": 3, "trip": 8}
    assert counts_by(library, "place") == {None: 11}
    printed = json.loads(calligram("info", indexed, "--by", "month", "--json").stdout)
    assert printed == {"counts": {f"{year}-05": 1 for year in years}, "missing": 6}
    shown = calligram("info", indexed, "--by", "folder").stdout.splitlines()
    assert [line.split()[:2] for line in shown] == [[".", "3"], ["trip", "8"]]
    refused = calligram("info", photos, "--by", "day")
    assert refused.returncode == 2


@pytest.mark.parametrize(
    ("row", "grouping", "group"),
    [
        ({"latitude": 48.8566, "longitude": 2.3522}, "place", "48.9, 2.4"),
        ({"latitude": -0.01, "longitude": -0.04}, "place", "0.0, 0.0"),
        ({"latitude": 48.8566}, "place", None),
        ({"taken": "yesterday", "year": 2020.0}, "year", "2020"),
        ({"taken": "yesterday"}, "day", None),
        ({}, "folder", ""),
    ],
)
def test_the_group_of_an_item(row, grouping, group):
    assert group_of(row, grouping) == group
